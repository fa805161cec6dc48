"""`/metrics` of a simulated engine: those series of vLLM 0.32 that concern load or KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .scheduler import Scheduler

BYTES_PER_TOKEN = 131_072
"""KV state of one token in a model with 32 layers of 8 heads of 128 in bfloat16."""

ENGINE = "0"


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Constant values in the metrics of one server.

    Attributes:
        model: served name, a label of each series.
        gpu_blocks: size of the GPU pool.
        max_loras: number of adapters that can run at once; 0 without adapters.
        started_at: start of the process, seconds since the epoch.
    """

    model: str
    gpu_blocks: int
    max_loras: int
    started_at: float


class EngineCollector(Collector):
    """Collector that reads a scheduler at each scrape."""

    def __init__(self, scheduler: Scheduler, info: ServerInfo) -> None:
        self._scheduler = scheduler
        self._info = info
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """Render the metrics as Prometheus text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the series with vLLM's names and texts."""
        yield GaugeMetricFamily(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds.",
            value=self._info.started_at,
        )
        yield from self._load()
        yield from self._cache()
        if self._scheduler.cache.cpu.capacity:
            yield from self._offload()
        if self._info.max_loras:
            yield self._loras()
        yield self._cache_config()

    def _load(self) -> Iterator[Metric]:
        load, counters = self._scheduler.load, self._scheduler.counters
        yield self._gauge(
            "num_requests_running", "Number of requests in model execution batches.", load.running
        )
        yield self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", load.waiting)
        yield self._by(
            GaugeMetricFamily,
            "num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            "reason",
            {"capacity": load.waiting - load.deferred, "deferred": load.deferred},
        )
        yield self._counter("num_preemptions", "Cumulative number of preemptions.", counters.preemptions)
        yield self._counter("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens)
        yield self._counter(
            "generation_tokens", "Number of generation tokens processed.", counters.generated_tokens
        )

    def _cache(self) -> Iterator[Metric]:
        load, counters = self._scheduler.load, self._scheduler.counters
        yield self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", load.kv_usage)
        queries = "Prefix cache queries, in terms of number of queried tokens."
        hits = "Prefix cache hits, in terms of number of cached tokens."
        yield self._counter("prefix_cache_queries", queries, counters.gpu_queries)
        yield self._counter("prefix_cache_hits", hits, counters.gpu_hits)
        yield self._counter("external_prefix_cache_queries", f"External: {queries}", counters.cpu_queries)
        external_hits = counters.cpu_hits + counters.storage_hits + counters.pulled_tokens
        yield self._counter("external_prefix_cache_hits", f"External: {hits}", external_hits)
        sources = {"device": counters.gpu_hits, "host": counters.cpu_hits, "p2p": 0}
        yield self._by(
            CounterMetricFamily,
            "prompt_tokens_cached_by_source",
            "Prefix-cache hit tokens by the cache tier that supplied them.",
            "source",
            {**sources, "disk": counters.storage_hits, "external_unspecified": counters.pulled_tokens},
        )

    def _offload(self) -> Iterator[Metric]:
        counters, block_bytes = self._scheduler.counters, self._scheduler.cache.block_size * BYTES_PER_TOKEN
        yield self._by(
            CounterMetricFamily,
            "kv_offload_total_bytes",
            "Number of bytes offloaded by KV connector",
            "transfer_type",
            {
                "CPU_to_GPU": counters.loaded_blocks * block_bytes,
                "GPU_to_CPU": counters.stored_blocks * block_bytes,
            },
        )

    def _loras(self) -> Metric:
        load = self._scheduler.load
        family = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "Running stats on lora requests.",
            labels=("max_lora", "running_lora_adapters", "waiting_lora_adapters"),
        )
        labels = (
            str(self._info.max_loras),
            ",".join(sorted(load.running_loras)),
            ",".join(sorted(load.waiting_loras)),
        )
        family.add_metric(labels, self._info.started_at)
        return family

    def _cache_config(self) -> Metric:
        cache = self._scheduler.cache
        labels = {
            "block_size": str(cache.block_size),
            "cache_dtype": "auto",
            "effective_attention_block_size": str(cache.block_size),
            "enable_prefix_caching": "True",
            "engine": ENGINE,
            "kv_cache_size_tokens": str(self._info.gpu_blocks * cache.block_size),
            "num_cpu_blocks": "None",
            "num_gpu_blocks": str(self._info.gpu_blocks),
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": "None",
        }
        family = GaugeMetricFamily(
            "vllm:cache_config_info", "Information of the LLMEngine CacheConfig", labels=tuple(labels)
        )
        family.add_metric(tuple(labels.values()), 1)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
        family.add_metric((ENGINE, self._info.model), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(f"vllm:{name}", text, labels=("engine", "model_name"))
        family.add_metric((ENGINE, self._info.model), value)
        return family

    def _by(
        self,
        family_type: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        text: str,
        label: str,
        values: dict[str, float],
    ) -> Metric:
        family = family_type(f"vllm:{name}", text, labels=("engine", "model_name", label))
        for word, value in values.items():
            family.add_metric((ENGINE, self._info.model, word), value)
        return family
