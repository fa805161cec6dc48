"""Series in which engines report their load and the size of their cache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from .scraping import EngineConfig, MetricsScrapeConfig

AUTO = "auto"
"""Value instead of an engine's name: detect the engine by the series in the response."""

TYPE_LABELS = ("llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type")
"""Labels of an endpoint that name its engine, newer first. Source: llm-d-router, core-metrics-extractor."""

MAX_ATTRIBUTES = 64
"""Most attributes of endpoints, which every decision copies."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)=("?)([^",{}]+)\2')


@dataclass(frozen=True, slots=True)
class Selector:
    """Selector of a series by its name and required label values.

    Attributes:
        name: name of the series.
        labels: required labels and values; other labels may have any value.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Selector:
        """Parse `name` or `name{label=value,...}`, with or without quotes around the values.

        Raises:
            ValueError: not of that form.
        """
        name, brace, rest = text.partition("{")
        labels = (
            [_LABEL.fullmatch(part.strip()) for part in rest.removesuffix("}").split(",")] if brace else []
        )
        if _NAME.fullmatch(name) is None or None in labels or (brace and not rest.endswith("}")):
            raise ValueError(f"found {text!r}, expected a series such as name or name{{label=value}}")
        return cls(name, tuple((label[1], label[3]) for label in labels if label is not None))


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """Series of one engine. If several are given, the first one in the response counts; if none is, the value is unknown.

    Attributes:
        waiting: gauges of queued requests.
        running: gauges of requests being served.
        kv_utilization: gauges of the used part of the KV blocks, 0 to 1.
        cache_info: series whose labels describe the cache.
        block_size_label: its label with the tokens per block.
        num_blocks_label: its label with the number of GPU blocks of all ranks.
        block_size: gauges of the tokens per block.
        num_blocks: gauges of the GPU blocks of one rank.
        offload: counters that change only when blocks move to or from slower memory.
        external: counters of prompt tokens from outside the GPU: from slower memory, or from another server.
        process_start: gauge of the start time of the process, in wall-clock seconds.
        lora_info: series whose labels name the LoRA adapters, with vLLM's label names, and whose value is the time of
            its update.
        attributes: attribute of endpoints and its series, for series that only plugins read.
        lora_loaded: series with a sample of 1 for each loaded LoRA adapter, which the labels `adapter_name` and `level` (gpu
            or cpu) name.
        offload_info: series whose labels `cpu_num_chunks` and `cpu_blocks_per_chunk` describe the memory of one rank behind
            its fastest tier.
        drafts: counters that exist only if a drafter proposes tokens.
    """

    waiting: tuple[Selector, ...]
    running: tuple[Selector, ...] = ()
    kv_utilization: tuple[Selector, ...] = ()
    cache_info: tuple[Selector, ...] = ()
    block_size_label: str = "block_size"
    num_blocks_label: str = "num_gpu_blocks"
    block_size: tuple[Selector, ...] = ()
    num_blocks: tuple[Selector, ...] = ()
    offload: tuple[Selector, ...] = ()
    external: tuple[Selector, ...] = ()
    process_start: Selector = Selector("process_start_time_seconds")
    lora_info: tuple[Selector, ...] = ()
    attributes: tuple[tuple[str, Selector], ...] = ()
    lora_loaded: tuple[Selector, ...] = ()
    offload_info: tuple[Selector, ...] = ()
    drafts: tuple[Selector, ...] = ()

    @property
    def load(self) -> tuple[Selector, ...]:
        """Return every series that can carry load."""
        return (*self.waiting, *self.running, *self.kv_utilization)

    @property
    def names(self) -> list[str]:
        """Return the names of all series that are read."""
        sizes = (*self.cache_info, *self.block_size, *self.num_blocks, *self.offload_info)
        facts = (*sizes, *self.offload, *self.external, *self.drafts, self.process_start)
        more = (selector for _, selector in self.attributes)
        return sorted(
            {selector.name for selector in (*self.load, *facts, *self.lora_info, *self.lora_loaded, *more)}
        )


def _all(*texts: str) -> tuple[Selector, ...]:
    return tuple(map(Selector.parse, texts))


ENGINES: Mapping[str, EngineSeries] = {
    "vllm": EngineSeries(
        waiting=_all("vllm:num_requests_waiting"),
        running=_all("vllm:num_requests_running"),
        # up to 0.9.1 only the second exists; since 0.13 it is removed
        kv_utilization=_all("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        cache_info=_all("vllm:cache_config_info"),
        offload=_all("vllm:kv_offload_total_bytes_total"),
        external=_all("vllm:external_prefix_cache_hits_total"),
        lora_info=_all("vllm:lora_requests_info"),
        lora_loaded=_all("vllm:lora_adapter_loaded"),
        offload_info=_all("vllm:kv_offload_config_info"),
        drafts=_all("vllm:spec_decode_num_drafts_total"),
    ),
    "sglang": EngineSeries(
        waiting=_all("sglang:num_queue_reqs"),
        running=_all("sglang:num_running_reqs"),
        kv_utilization=_all("sglang:token_usage"),
        cache_info=_all("sglang:cache_config_info"),
        block_size_label="page_size",
        num_blocks_label="num_pages",
        block_size=_all("sglang:page_size"),
        num_blocks=_all("sglang:num_pages"),
    ),
    "trtllm-serve": EngineSeries(
        waiting=_all("trtllm_num_requests_waiting"),
        running=_all("trtllm_num_requests_running"),
        kv_utilization=_all("trtllm_kv_cache_utilization"),
        block_size=_all("trtllm_kv_cache_tokens_per_block"),
        num_blocks=_all("trtllm_kv_cache_max_blocks"),
    ),
    "triton-tensorrt-llm": EngineSeries(
        waiting=_all("nv_trt_llm_request_metrics{request_type=waiting}"),
        running=_all("nv_trt_llm_request_metrics{request_type=scheduled}"),
        kv_utilization=_all("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
        block_size=_all("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
        num_blocks=_all("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
    ),
    # its nv_inference_exec_count counts executions since the start, not running requests
    "triton": EngineSeries(waiting=_all("nv_inference_pending_request_count")),
}
"""Known engines by name. Source: llm-d-router, core-metrics-extractor, and the engines' own /metrics."""


class EngineCatalog:
    """Engines with their series, by the labels of an endpoint.

    Args:
        config: default engine, and series that differ from `ENGINES`; checked.
    """

    def __init__(self, config: MetricsScrapeConfig) -> None:
        own = {name: _with_own(ENGINES.get(name), names) for name, names in config.engines.items()}
        self._engines = {**own, **{name: each for name, each in ENGINES.items() if name not in own}}
        self._default = config.engine
        self.attributes = attribute_names(config)
        """Attributes that endpoints may have, sorted."""

    def of(self, labels: Mapping[str, str]) -> Mapping[str, EngineSeries]:
        """Return the possible engines of an endpoint with these labels, by name; only the one in its label if it is known."""
        named = next((labels[label] for label in TYPE_LABELS if label in labels), self._default)
        chosen = named if named in self._engines else self._default
        return self._engines if chosen == AUTO else {chosen: self._engines[chosen]}


def attribute_names(config: MetricsScrapeConfig) -> tuple[str, ...]:
    """Return the attributes of all engines, sorted."""
    return tuple(sorted({name for engine in config.engines.values() for name in engine.attributes}))


def _with_own(known: EngineSeries | None, own: EngineConfig) -> EngineSeries:
    """Return the series of an engine with those of `own` instead of known ones; an empty text removes a series."""
    series = known or EngineSeries(waiting=())
    return replace(
        series,
        waiting=_chosen(own.waiting, series.waiting),
        running=_chosen(own.running, series.running),
        kv_utilization=_chosen(own.kv_utilization, series.kv_utilization),
        block_size=_chosen(own.block_size, series.block_size),
        num_blocks=_chosen(own.num_blocks, series.num_blocks),
        cache_info=_chosen(own.cache_info, series.cache_info),
        block_size_label=own.block_size_label or series.block_size_label,
        num_blocks_label=own.num_blocks_label or series.num_blocks_label,
        lora_info=_chosen(own.lora_info, series.lora_info),
        attributes=tuple((name, Selector.parse(text)) for name, text in own.attributes.items()),
        lora_loaded=_chosen(own.lora_loaded, series.lora_loaded),
    )


def _chosen(own: str | None, known: tuple[Selector, ...]) -> tuple[Selector, ...]:
    if own is None:
        return known
    return _all(own) if own else ()
