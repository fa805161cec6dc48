"""What one scrape tells of an endpoint: its load, and what changes only when it restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...scorers.model import Adapters, Load
from .errors import ScrapeError
from .exposition import Exposition

MAX_GAUGE = 10**12
"""Load above which a body is taken for garbage; also keeps sums finite."""

MAX_DIGITS = 15
"""Longest number read from a label."""


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """Under which names an engine tells its load and cache size.

    Attributes:
        waiting: gauge of queued requests.
        running: gauge of requests being served.
        kv_utilization: gauges of the used part of the KV blocks, newest name first.
        cache_info: series whose labels describe the cache.
        block_size_label: its label with the tokens a block.
        num_blocks_label: its label with the number of GPU blocks.
        process_start: gauge with the wall-clock start of the process in seconds.
        offload: counters that move only when blocks go to or come from slower memory.
        lora_info: series whose labels name the LoRA adapters and whose value is the time of writing; empty: the engine
            tells nothing of adapters.
    """

    waiting: str
    running: str
    kv_utilization: tuple[str, ...]
    cache_info: str
    block_size_label: str
    num_blocks_label: str
    process_start: str = "process_start_time_seconds"
    offload: tuple[str, ...] = ()
    lora_info: str = ""


VLLM = EngineSeries(
    waiting="vllm:num_requests_waiting",
    running="vllm:num_requests_running",
    kv_utilization=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    cache_info="vllm:cache_config_info",
    block_size_label="block_size",
    num_blocks_label="num_gpu_blocks",
    offload=("vllm:kv_offload_total_bytes_total", "vllm:external_prefix_cache_hits_total"),
    lora_info="vllm:lora_requests_info",
)
"""Names of vLLM; `gpu_cache_usage_perc` is the only utilization up to 0.9.1, and gone since 0.13."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an endpoint tells of itself that changes only with a restart; None where it tells nothing.

    Attributes:
        n_engines: data-parallel ranks behind the endpoint's metrics.
        block_size: tokens a block.
        num_gpu_blocks: GPU blocks of all ranks together.
        process_start_s: wall-clock start of the process in seconds; vLLM leaves it out with several ranks.
        offloads: whether blocks have moved to or from slower memory.
    """

    n_engines: int
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    process_start_s: float | None = None
    offloads: bool = False

    @property
    def gpu_blocks_per_engine(self) -> int | None:
        """GPU blocks of one rank, the capacity of its first tier."""
        return None if self.num_gpu_blocks is None else self.num_gpu_blocks // self.n_engines


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One scrape, read."""

    load: Load
    facts: EngineFacts


class ReportReader:
    """Reads the bodies of one endpoint.

    Remembers what the last labels of the cache and of the adapters said: the cache's line has 60 labels and stays the
    same from start to restart, the adapters' changes with the requests.
    """

    def __init__(self, series: EngineSeries = VLLM) -> None:
        self._series = series
        self._cache_blocks: tuple[bytes, ...] = ()
        self._cache_facts: tuple[int | None, int | None] = (None, None)
        self._lora_block = b""
        self._adapters: Adapters | None = None

    def read(self, body: bytes, *, now: float) -> EngineReport:
        """Load and facts in one `/metrics` body.

        Waiting and running requests are summed over the endpoint's data-parallel ranks. Utilization is their mean:
        ranks have pools of one size, so the mean is the used part of the endpoint's whole KV memory, the figure that
        one engine with a pool of that size would show.

        Args:
            body: Prometheus text format 0.0.4.
            now: monotonic seconds to which the load belongs.

        Raises:
            ScrapeError: `missing_series` when one of the three load gauges is absent, `malformed` when a value is
                impossible or a needed line cannot be read.
        """
        series, exposition = self._series, Exposition(body)
        waiting = _gauge(exposition, (series.waiting,))
        running = _gauge(exposition, (series.running,))
        utilizations = _gauge(exposition, series.kv_utilization)
        load = Load(
            waiting=int(sum(waiting)),
            running=int(sum(running)),
            kv_utilization=min(1.0, sum(utilizations) / len(utilizations)),
            updated_at=now,
            adapters=self._read_adapters(exposition),
        )
        block_size, num_gpu_blocks = self._cache(exposition)
        starts = [sample.value for sample in exposition.samples(series.process_start)]
        facts = EngineFacts(
            n_engines=len(waiting),
            block_size=block_size,
            num_gpu_blocks=num_gpu_blocks,
            process_start_s=starts[0] if starts and math.isfinite(starts[0]) else None,
            offloads=any(sample.value > 0 for name in series.offload for sample in exposition.samples(name)),
        )
        return EngineReport(load, facts)

    def _read_adapters(self, exposition: Exposition) -> Adapters | None:
        """The adapters of the newest line: vLLM leaves those of past states exposed.

        A missing number of adapters, as from an engine without LoRA, tells nothing of them.
        """
        samples = exposition.samples(self._series.lora_info) if self._series.lora_info else []
        newest = max(samples, key=lambda sample: sample.value, default=None)
        block = newest.label_block if newest is not None else b""
        if newest is not None and block != self._lora_block:
            labels = newest.labels()
            text = labels.get("max_lora", "")
            self._adapters = Adapters(
                active=_names(labels.get("running_lora_adapters", "")),
                waiting=_names(labels.get("waiting_lora_adapters", "")),
                max_active=int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else 0,
            )
        self._lora_block = block
        return self._adapters if newest is not None else None

    def _cache(self, exposition: Exposition) -> tuple[int | None, int | None]:
        """Block size and number of GPU blocks; a label that is no number, such as `None`, tells nothing.

        vLLM writes the sum of all ranks' blocks into the line of every rank, hence the largest and not the sum.
        """
        samples = exposition.samples(self._series.cache_info)
        blocks = tuple(sample.label_block for sample in samples)
        if blocks != self._cache_blocks:
            labels = [sample.labels() for sample in samples]
            self._cache_blocks = blocks
            self._cache_facts = (
                _largest(labels, self._series.block_size_label),
                _largest(labels, self._series.num_blocks_label),
            )
        return self._cache_facts


def _gauge(exposition: Exposition, names: Sequence[str]) -> list[float]:
    """Values of the first of `names` that is there, one a rank."""
    for name in names:
        samples = exposition.samples(name)
        if not samples:
            continue
        for sample in samples:
            if not 0 <= sample.value <= MAX_GAUGE:
                raise ScrapeError("malformed", f"{name} is {sample.value}, want 0 to {MAX_GAUGE}")
        return [sample.value for sample in samples]
    raise ScrapeError(
        "missing_series", f"no series {' or '.join(names)} in the answer; is it an engine's /metrics?"
    )


def _names(text: str) -> frozenset[str]:
    """Adapters of a label, which separates them by commas."""
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _largest(caches: Sequence[dict[str, str]], label: str) -> int | None:
    texts = [labels.get(label, "") for labels in caches]
    numbers = [int(text) for text in texts if text.isdecimal() and len(text) <= MAX_DIGITS]
    return max((number for number in numbers if number > 0), default=None)
