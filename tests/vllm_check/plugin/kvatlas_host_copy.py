"""CPU offload for vLLM's CPU backend; loaded by vLLM itself, in its own environment.

vLLM refuses to offload where there is no accelerator, because its copy kernels need one. This replaces the copy alone,
by indexed tensor copies. What kvatlas is checked against stays vLLM's: the connector, which decides what is stored,
evicted and loaded, and the events it publishes.
"""

from __future__ import annotations

from time import perf_counter

import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostCopyWorker(OffloadingWorker):
    """Copies blocks at once, when they are submitted.

    Args:
        caches: the engine's KV tensors, their first dimension is the block.
        n_chunks: chunks of the slower memory.
        blocks_per_chunk: blocks a chunk has room for.
    """

    def __init__(self, caches: CanonicalKVCaches, *, n_chunks: int, blocks_per_chunk: int) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._device = [cache.tensor for cache in caches.tensors]
        self._host = [
            torch.zeros((n_chunks * blocks_per_chunk, *tensor.shape[1:]), dtype=tensor.dtype)
            for tensor in self._device
        ]
        self._finished: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Copy blocks to the slower memory."""
        blocks, slots = self._places(src_spec, dst_spec)
        return self._copy(job_id, self._device, blocks, self._host, slots)

    def submit_load(
        self,
        job_id: int,
        src_spec: LoadStoreSpec,
        dst_spec: GPULoadStoreSpec,
        expedited: bool = False,  # noqa: ARG002, FBT002 (vLLM 0.33 passes it)
    ) -> bool:
        """Copy blocks back; with `expedited` no sooner, because every copy is immediate."""
        blocks, slots = self._places(dst_spec, src_spec)
        return self._copy(job_id, self._host, slots, self._device, blocks)

    def get_finished(self) -> list[TransferResult]:
        """Return the copies since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Return at once: nothing is ever in flight."""

    def _copy(
        self,
        job_id: int,
        sources: list[torch.Tensor],
        source_rows: torch.Tensor,
        targets: list[torch.Tensor],
        target_rows: torch.Tensor,
    ) -> bool:
        started = perf_counter()
        n_bytes = 0
        for source, target in zip(sources, targets, strict=True):
            rows = source[source_rows]
            target[target_rows] = rows
            n_bytes += rows.nbytes
        self._finished.append(TransferResult(job_id, True, n_bytes, perf_counter() - started))
        return True

    def _places(self, device: GPULoadStoreSpec, host: LoadStoreSpec) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rows of the engine's tensors, and the rows of ours that belong to them.

        Blocks come group by group. A group's blocks are consecutive blocks of one request and its chunks the ones those
        lie in, so the first block may be anywhere in the first chunk.
        """
        if not isinstance(host, BlockIDsLoadStoreSpec):
            raise TypeError(f"want chunk numbers, got {type(host).__name__}")
        slots: list[int] = []
        n_chunks = 0
        for n_blocks, first_block in zip(device.group_sizes, device.block_indices, strict=True):
            offset = first_block % self._blocks_per_chunk
            for position in range(offset, offset + n_blocks):
                chunk, place = divmod(position, self._blocks_per_chunk)
                slots.append(int(host.block_ids[n_chunks + chunk]) * self._blocks_per_chunk + place)
            n_chunks += -(-(offset + n_blocks) // self._blocks_per_chunk) if n_blocks else 0
        return torch.from_numpy(device.block_ids).long(), torch.tensor(slots, dtype=torch.long)


class HostCopySpec(CPUOffloadingSpec):
    """vLLM's CPU offload with `HostCopyWorker` in place of its copy kernels."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return the worker, made at the first call."""
        if self._worker is None:
            self._worker = HostCopyWorker(
                kv_caches, n_chunks=self.num_chunks, blocks_per_chunk=self.blocks_per_chunk
            )
        return self._worker
