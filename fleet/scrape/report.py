"""Content of one scrape: the load of an endpoint, and facts that change only with a restart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...configs.engines import EngineSeries, Selector
from ...scorers.core.model import Adapters, Load
from .adapters import adapters_of
from .errors import ScrapeError
from .exposition import MAX_DIGITS, Bookmark, Exposition, Sample

MAX_GAUGE = 10**12
"""Largest plausible load; larger values are malformed. Also keeps sums finite."""

RANK_TOKENS_LABEL = "kv_cache_size_tokens"
"""Label of vLLM's cache description: tokens for which one rank has room. Other engines lack it."""

FACTS_EVERY_S = 1.0
"""Time between two reads of facts, and of adapters while there are none: they rarely change, and cost more to find than
the load."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts of an endpoint that change only with a restart; None if its metrics lack them.

    Attributes:
        n_engines: data-parallel ranks behind the endpoint's metrics.
        block_size: tokens per block.
        num_gpu_blocks: GPU blocks of all ranks together.
        rank_tokens: tokens for which the GPU blocks of one rank have room: with several groups of layers, fewer than all its blocks
            have places.
        process_start_s: start of the process, wall-clock seconds; vLLM omits it with several ranks.
        offloads: whether blocks have moved to or from slower memory.
        finds_outside: whether prompt tokens came from outside the GPU: from slower memory, or from another server.
        slow_blocks: blocks that one rank's memory behind its fastest tier has.
        drafts: whether a drafter proposes tokens.
    """

    n_engines: int
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    rank_tokens: int | None = None
    process_start_s: float | None = None
    offloads: bool = False
    finds_outside: bool = False
    slow_blocks: int | None = None
    drafts: bool = False

    @property
    def gpu_tokens(self) -> int:
        """Tokens for which the GPU blocks of all ranks have room, 0 if unknown."""
        if self.rank_tokens is not None:
            return self.n_engines * self.rank_tokens
        return (self.num_gpu_blocks or 0) * (self.block_size or 0)

    @property
    def gpu_blocks_per_engine(self) -> int | None:
        """GPU blocks of one rank, the capacity of its fastest tier."""
        return None if self.num_gpu_blocks is None else self.num_gpu_blocks // self.n_engines


@dataclass(frozen=True, slots=True)
class EngineReport:
    """Result of one scrape. The facts may be up to `FACTS_EVERY_S` seconds old."""

    load: Load
    facts: EngineFacts


class ReportReader:
    """Reader of the bodies of one endpoint.

    Caches the positions of series and the parsed labels: the line of the cache has 60, which change only with a restart.

    Args:
        engines: possible engines by name; the first one with a load series in the body is chosen.
    """

    def __init__(self, engines: Mapping[str, EngineSeries]) -> None:
        self._engines = engines
        self._bookmarks: dict[str, Bookmark] = {}
        self._cache_blocks: list[bytes] = []
        self._cache_sizes: tuple[int | None, int | None, int | None] = (None, None, None)
        self._lora_blocks: list[bytes] = []
        self._adapters: Adapters | None = None
        self._unknown = {name: math.nan for each in engines.values() for name, _ in each.attributes}
        """Attributes of all engines, so that one that the response lacks replaces its last value."""
        self._facts: EngineFacts | None = None
        self._facts_at = -math.inf
        self.engine: str | None = None
        """Name of the engine, None until a body has shown it."""

    @property
    def names(self) -> list[str]:
        """Names of all series that are read, empty until the engine is known."""
        return self._engines[self.engine].names if self.engine is not None else []

    def new_connection(self) -> None:
        """Detect engine and facts again with the next body, because the endpoint may have restarted."""
        self.engine = None
        self._facts_at = -math.inf

    def read(self, body: bytes, *, now: float) -> EngineReport:
        """Read load and facts from a `/metrics` body.

        Waiting and running requests are summed over the data-parallel ranks. Utilization is the mean over the ranks:
        their pools have the same size, so the mean is the used part of the endpoint's whole KV memory.

        Args:
            body: Prometheus text format 0.0.4.
            now: time of the load, monotonic seconds.

        Raises:
            ScrapeError: `missing_series` if a load series of the engine is absent, `malformed` if a value is impossible
                or a needed line is malformed.
        """
        exposition = Exposition(body)
        series = self._series(exposition)
        waiting = self._gauge(exposition, series.waiting)
        running = self._gauge(exposition, series.running)
        utilizations = self._gauge(exposition, series.kv_utilization) or [0.0]
        is_due = now - self._facts_at >= FACTS_EVERY_S
        if self._facts is None or is_due:
            self._facts, self._facts_at = self._read_facts(exposition, series, n_engines=len(waiting)), now
        if self._adapters is not None or is_due:
            self._adapters = self._read_adapters(exposition, series)
        load = Load(
            waiting=int(sum(waiting)),
            running=int(sum(running)),
            kv_utilization=min(1.0, sum(utilizations) / len(utilizations)),
            updated_at=now,
            adapters=self._adapters,
            attributes=self._read_attributes(exposition, series) if self._unknown else None,
            gpu_tokens=self._facts.gpu_tokens,
        )
        return EngineReport(load, self._facts)

    def _series(self, exposition: Exposition) -> EngineSeries:
        """Return the series names of this endpoint's engine, which the body shows if it is unknown."""
        if self.engine is None:
            for name, series in self._engines.items():
                if any(self._samples(exposition, selector) for selector in series.load):
                    self.engine = name
                    break
            else:
                names = ", ".join(series.waiting[0].name for series in self._engines.values())
                raise ScrapeError(
                    "missing_series", f"no series {names} in the response; is it an engine's /metrics?"
                )
        return self._engines[self.engine]

    def _read_adapters(self, exposition: Exposition, series: EngineSeries) -> Adapters | None:
        """Return the adapters, None if the engine reports none. Parsed only if the newest line or the loaded ones change."""
        lines = [each for name in series.lora_info for each in self._samples(exposition, name)]
        loaded = [each for name in series.lora_loaded for each in self._samples(exposition, name)]
        newest = max(lines, key=lambda sample: sample.value, default=None)
        if newest is None and not loaded:
            return None
        blocks = [each.label_block for each in loaded if each.value > 0]
        if newest is not None:
            blocks.append(newest.label_block)
        if self._adapters is None or blocks != self._lora_blocks:
            self._lora_blocks = blocks
            return adapters_of(lines, loaded)
        return self._adapters

    def _read_attributes(self, exposition: Exposition, series: EngineSeries) -> Mapping[str, float]:
        """Return the attributes, NaN if the response lacks the series or its value is no finite number.

        The first of several lines counts, as in the reference.
        """
        found = self._unknown.copy()
        for name, selector in series.attributes:
            samples = self._samples(exposition, selector)
            if samples and math.isfinite(samples[0].value):
                found[name] = samples[0].value
        return found

    def _samples(self, exposition: Exposition, selector: Selector) -> list[Sample]:
        bookmark = self._bookmarks.get(selector.name)
        if bookmark is None:
            bookmark = self._bookmarks[selector.name] = Bookmark(selector.name)
        samples = bookmark.samples(exposition)
        if not selector.labels:
            return samples
        return [each for each in samples if all(each.labels().get(k) == v for k, v in selector.labels)]

    def _gauge(self, exposition: Exposition, selectors: Sequence[Selector]) -> list[float]:
        """Return the values of the first selector with samples, one per rank; empty without selectors."""
        for selector in selectors:
            samples = self._samples(exposition, selector)
            for sample in samples:
                if not 0 <= sample.value <= MAX_GAUGE:
                    raise ScrapeError(
                        "malformed", f"{selector.name} is {sample.value}, want 0 to {MAX_GAUGE}"
                    )
            if samples:
                return [sample.value for sample in samples]
        if not selectors:
            return []
        names = " or ".join(selector.name for selector in selectors)
        raise ScrapeError("missing_series", f"no series {names} in the response; is it an engine's /metrics?")

    def _read_facts(self, exposition: Exposition, series: EngineSeries, *, n_engines: int) -> EngineFacts:
        """Read the facts.

        vLLM writes the blocks of all ranks into the label of every rank, hence the maximum; gauges count the rank's own.
        Labels that are no numbers, such as `None`, are ignored.
        """
        block_size, num_blocks, rank_tokens = self._cache(exposition, series)
        starts = [sample.value for sample in self._samples(exposition, series.process_start)]
        return EngineFacts(
            n_engines=n_engines,
            block_size=block_size or self._whole(exposition, series.block_size, max),
            num_gpu_blocks=num_blocks or self._whole(exposition, series.num_blocks, sum),
            rank_tokens=rank_tokens,
            process_start_s=starts[0] if starts and math.isfinite(starts[0]) else None,
            offloads=self._has_counted(exposition, series.offload),
            finds_outside=self._has_counted(exposition, series.external),
            slow_blocks=self._slow_blocks(exposition, series),
            drafts=any(self._samples(exposition, name) for name in series.drafts),
        )

    def _has_counted(self, exposition: Exposition, counters: Sequence[Selector]) -> bool:
        return any(each.value > 0 for name in counters for each in self._samples(exposition, name))

    def _slow_blocks(self, exposition: Exposition, series: EngineSeries) -> int | None:
        samples = [each for name in series.offload_info for each in self._samples(exposition, name)]
        labels = [sample.labels() for sample in samples]
        n_chunks, chunk = _largest(labels, "cpu_num_chunks"), _largest(labels, "cpu_blocks_per_chunk")
        return None if n_chunks is None or chunk is None else min(n_chunks * chunk, MAX_GAUGE)

    def _cache(
        self, exposition: Exposition, series: EngineSeries
    ) -> tuple[int | None, int | None, int | None]:
        """Return block size, number of blocks and tokens of a rank from the labels of the cache description."""
        samples = [each for name in series.cache_info for each in self._samples(exposition, name)]
        blocks = [sample.label_block for sample in samples]
        if blocks != self._cache_blocks:
            labels = [sample.labels() for sample in samples]
            self._cache_blocks = blocks
            self._cache_sizes = (
                _largest(labels, series.block_size_label),
                _largest(labels, series.num_blocks_label),
                _largest(labels, RANK_TOKENS_LABEL),
            )
        return self._cache_sizes

    def _whole(
        self, exposition: Exposition, selectors: Sequence[Selector], whole: Callable[[list[int]], int]
    ) -> int | None:
        """Combine the values of all ranks into one number, None if there is none."""
        values = (each.value for name in selectors for each in self._samples(exposition, name))
        return whole([int(value) for value in values if 1 <= value <= MAX_GAUGE] or [0]) or None


def _largest(caches: Sequence[dict[str, str]], label: str) -> int | None:
    texts = [labels.get(label, "") for labels in caches]
    numbers = [int(text) for text in texts if text.isdecimal() and len(text) <= MAX_DIGITS]
    return max((number for number in numbers if number > 0), default=None)
