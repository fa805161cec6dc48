"""Constants of the cost model, each with its source: one engine of the published benchmark, Qwen3-32B on two H100.

No constant was fitted to a result with which the simulation is compared. Measured values were measured by others on that
hardware. Derived values follow from data sheets and the model's shape, with the stated efficiency.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from .kv_network import NetworkSpec
from .service_times import ServiceTimes

GIB = 1 << 30
BYTES_PER_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Shape of a dense transformer with grouped-query attention, weights and KV state in 16 bits."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: float

    @property
    def kv_bytes_per_token(self) -> int:
        """Size of the keys and values of one token."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def weight_bytes(self) -> float:
        """Size of all weights."""
        return 2 * self.parameters

    @property
    def flops_per_pair(self) -> int:
        """Attention of one token to one earlier token: two products of 2 operations each, for score and sum."""
        return 4 * self.layers * self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU and its link to the host.

    Attributes:
        flops: dense 16-bit operations per second.
        memory_bytes_per_s: bandwidth of its memory.
        host_bytes_per_s: bandwidth of copies of whole blocks between its memory and the host's, in one direction.
        host_bytes_per_s_both_ways: total bandwidth of both directions at once.
    """

    flops: float
    memory_bytes_per_s: float
    host_bytes_per_s: float
    host_bytes_per_s_both_ways: float


QWEN3_32B = Model(layers=64, heads=64, kv_heads=8, head_dim=128, parameters=32.8e9)
"""Source: config.json and model card of Qwen/Qwen3-32B."""

H100_SXM = Accelerator(
    flops=989e12, memory_bytes_per_s=3.35e12, host_bytes_per_s=50e9, host_bytes_per_s_both_ways=83.4e9
)
"""Source: NVIDIA H100 data sheet (SXM5: 989 TFLOPS bfloat16 dense, 3.35 TB/s). Copies: measured by the
authors of vLLM's offloading connector with blocks of 2 MB, the part of this model's block on each of two GPUs (vLLM blog,
Inside vLLM's New KV Offloading Connector, 2026-01-08). The link, PCIe 5.0 x16, has 64 GB/s per direction."""

TENSOR_PARALLEL = 2
"""GPUs per engine, as in the published benchmark; each has half of each block, so their link bandwidths add up."""

PREFILL_TOKENS_PER_S = 15_928.0
"""Measured: the peak prefill throughput of a 32B Qwen on this hardware, the default of the reference endpoint picker's
prefix-cache-affinity-filter. It is 53 % of the data sheet's operations."""

ATTENTION_EFFICIENCY = 0.6
"""Fraction of the data sheet's operations that attention kernels reach on long causal prompts with heads of 128; assumed.
FlashAttention 3 (arXiv 2407.08608) reaches 0.75 at best on this GPU, and less for causal and for shorter prompts."""

MEMORY_EFFICIENCY = 0.8
"""Fraction of the data sheet's memory bandwidth that decode kernels reach; assumed, the usual range is 0.7 to 0.9."""

STEP_OVERHEAD_S = 0.003
"""Time of a step for scheduling, kernel launches and all-reduce, beside reading weights; assumed."""

NIC_BYTES_PER_S = 50e9
"""Network card of one GPU, per direction: 400 Gbit/s (NVIDIA DGX H100 data sheet: one ConnectX-7 per GPU)."""

NIC_EFFICIENCY = 0.8
"""Fraction of it that transfers of KV blocks reach; assumed."""

TRANSFER_LATENCY_S = 0.002
"""From the last byte of a transfer until the receiver uses it, with the exchange of block addresses; assumed."""

ENCODE_S_PER_ITEM = 0.1
"""Encoding one image on one engine; assumed."""

STORAGE_BYTES_PER_S = 5e9
"""Read bandwidth of one engine from shared storage; assumed, a fast shared file system."""

MAX_NUM_BATCHED_TOKENS = 8192
"""Tokens per step, vLLM's default for a server on an H100."""

MAX_NUM_SEQS = 1024
"""Concurrently running requests, vLLM's default for a server on an H100."""

BLOCK_SIZE = 16
"""Tokens per block, vLLM's default on GPUs."""

GPU_BLOCKS = 9271
"""KV blocks on the GPUs of one engine in the published benchmark."""


def service_times(
    model: Model = QWEN3_32B,
    gpu: Accelerator = H100_SXM,
    *,
    tensor_parallel: int = TENSOR_PARALLEL,
    copies_overlap: bool = True,
) -> ServiceTimes:
    """Compute the service times of one engine: `tensor_parallel` GPUs that share each layer's work evenly.

    The measured prefill time scales linearly with GPUs, their operations and the model's size. By default copies overlap with
    computing: vLLM runs them on separate streams, one after another per direction, and copies to the CPU after the step that
    computed the blocks (vllm/v1/kv_offload/worker/cpu_gpu.py).
    """
    flops, memory = gpu.flops * tensor_parallel, gpu.memory_bytes_per_s * tensor_parallel * MEMORY_EFFICIENCY
    measured_flops = H100_SXM.flops * TENSOR_PARALLEL / QWEN3_32B.parameters
    link = gpu.host_bytes_per_s * tensor_parallel
    return ServiceTimes(
        prefill_s_per_token=measured_flops / (flops / model.parameters) / PREFILL_TOKENS_PER_S,
        load_s_per_token=model.kv_bytes_per_token / link,
        store_s_per_token=model.kv_bytes_per_token / link,
        copy_speed_both_ways=gpu.host_bytes_per_s_both_ways / 2 / gpu.host_bytes_per_s,
        step_s=STEP_OVERHEAD_S,
        weights_s=model.weight_bytes / memory,
        attention_s_per_pair=model.flops_per_pair / (flops * ATTENTION_EFFICIENCY),
        context_s_per_token=model.kv_bytes_per_token / memory,
        fetch_s_per_token=model.kv_bytes_per_token / STORAGE_BYTES_PER_S,
        copies_overlap=copies_overlap,
    )


def network(gbit_per_s: float | None = None, *, zone_gbit_per_s: float | None = None) -> NetworkSpec:
    """Return the network of engines.

    Args:
        gbit_per_s: bandwidth per engine and direction; None for that of the hardware.
        zone_gbit_per_s: bandwidth from one zone to another; None for as much as the servers send.
    """
    cards = NIC_BYTES_PER_S * TENSOR_PARALLEL * NIC_EFFICIENCY
    bytes_per_s = cards if gbit_per_s is None else gbit_per_s * BYTES_PER_GBIT
    return NetworkSpec(
        server_bytes_per_s=bytes_per_s,
        zone_bytes_per_s=inf if zone_gbit_per_s is None else zone_gbit_per_s * BYTES_PER_GBIT,
        latency_s=TRANSFER_LATENCY_S,
    )


def blocks_in(gibibytes: float, *, block_size: int = BLOCK_SIZE, model: Model = QWEN3_32B) -> int:
    """Return how many KV blocks fit into this much memory of one server, for all its GPUs together."""
    return int(gibibytes * GIB / (model.kv_bytes_per_token * block_size))
