"""What one scrape tells of an endpoint: its load, and what changes only when it restarts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...configs.engines import EngineSeries, Selector
from ...scorers.core.model import Adapters, Load
from .errors import ScrapeError
from .exposition import Bookmark, Exposition, Sample

MAX_GAUGE = 10**12
"""Load above which a body is taken for garbage; also keeps sums finite."""

MAX_DIGITS = 15
"""Longest number read from a label."""

FACTS_EVERY_S = 1.0
"""Facts, and adapters where there were none, are looked for this often: they hardly change, and to find them costs more
than the load."""


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
    """One scrape, read. The facts are those of up to `FACTS_EVERY_S` seconds ago."""

    load: Load
    facts: EngineFacts


class ReportReader:
    """Reads the bodies of one endpoint.

    Remembers where series were and what the last labels said: the cache's line has 60 and stays the same from start to
    restart.

    Args:
        engines: engines it may be, by name; the first of which a load series is there is the one.
    """

    def __init__(self, engines: Mapping[str, EngineSeries]) -> None:
        self._engines = engines
        self._bookmarks: dict[str, Bookmark] = {}
        self._cache_blocks: list[bytes] = []
        self._cache_sizes: tuple[int | None, int | None] = (None, None)
        self._lora_block = b""
        self._adapters: Adapters | None = None
        self._facts: EngineFacts | None = None
        self._facts_at = -math.inf
        self.engine: str | None = None
        """Which engine it is, None until a body showed it."""

    @property
    def names(self) -> list[str]:
        """Names of every series that is read of the engine, once it is known."""
        return self._engines[self.engine].names if self.engine is not None else []

    def new_connection(self) -> None:
        """The endpoint may have restarted: the next body shows its engine and facts."""
        self.engine = None
        self._facts_at = -math.inf

    def read(self, body: bytes, *, now: float) -> EngineReport:
        """Load and facts in one `/metrics` body.

        Waiting and running requests are summed over the endpoint's data-parallel ranks. Utilization is their mean:
        ranks have pools of one size, so the mean is the used part of the endpoint's whole KV memory, the figure that
        one engine with a pool of that size would show.

        Args:
            body: Prometheus text format 0.0.4.
            now: monotonic seconds to which the load belongs.

        Raises:
            ScrapeError: `missing_series` when a load series of the engine is absent, `malformed` when a value is
                impossible or a needed line cannot be read.
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
        )
        return EngineReport(load, self._facts)

    def _series(self, exposition: Exposition) -> EngineSeries:
        """The names of this endpoint's engine; where it is not known, of the first that the body may be of."""
        if self.engine is None:
            for name, series in self._engines.items():
                if any(self._samples(exposition, selector) for selector in series.load):
                    self.engine = name
                    break
            else:
                names = ", ".join(series.waiting[0].name for series in self._engines.values())
                raise ScrapeError(
                    "missing_series", f"no series {names} in the answer; is it an engine's /metrics?"
                )
        return self._engines[self.engine]

    def _read_adapters(self, exposition: Exposition, series: EngineSeries) -> Adapters | None:
        """The adapters of the newest line, None without: vLLM leaves those of past states exposed.

        A missing number of adapters, as from an engine without LoRA, tells nothing of them.
        """
        samples = [each for name in series.lora_info for each in self._samples(exposition, name)]
        newest = max(samples, key=lambda sample: sample.value, default=None)
        if newest is None:
            return None
        if self._adapters is not None and newest.label_block == self._lora_block:
            return self._adapters
        self._lora_block = newest.label_block
        labels = newest.labels()
        text = labels.get("max_lora", "")
        return Adapters(
            active=_names(labels.get("running_lora_adapters", "")),
            waiting=_names(labels.get("waiting_lora_adapters", "")),
            max_active=int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else 0,
        )

    def _samples(self, exposition: Exposition, selector: Selector) -> list[Sample]:
        bookmark = self._bookmarks.get(selector.name)
        if bookmark is None:
            bookmark = self._bookmarks[selector.name] = Bookmark(selector.name)
        samples = bookmark.samples(exposition)
        if not selector.labels:
            return samples
        return [each for each in samples if all(each.labels().get(k) == v for k, v in selector.labels)]

    def _gauge(self, exposition: Exposition, selectors: Sequence[Selector]) -> list[float]:
        """Values of the first of `selectors` that is there, one a rank; nothing when none is asked for."""
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
        raise ScrapeError("missing_series", f"no series {names} in the answer; is it an engine's /metrics?")

    def _read_facts(self, exposition: Exposition, series: EngineSeries, *, n_engines: int) -> EngineFacts:
        """What the body tells of the endpoint itself.

        vLLM writes the sum of all ranks' blocks into the line of every rank, hence the largest; gauges are each rank's
        own. A label that is no number, such as `None`, tells nothing.
        """
        block_size, num_blocks = self._cache(exposition, series)
        starts = [sample.value for sample in self._samples(exposition, series.process_start)]
        return EngineFacts(
            n_engines=n_engines,
            block_size=block_size or self._whole(exposition, series.block_size, max),
            num_gpu_blocks=num_blocks or self._whole(exposition, series.num_blocks, sum),
            process_start_s=starts[0] if starts and math.isfinite(starts[0]) else None,
            offloads=any(
                each.value > 0 for name in series.offload for each in self._samples(exposition, name)
            ),
        )

    def _cache(self, exposition: Exposition, series: EngineSeries) -> tuple[int | None, int | None]:
        """Block size and number of blocks by the labels of the cache description, which vLLM gives sixty."""
        samples = [each for name in series.cache_info for each in self._samples(exposition, name)]
        blocks = [sample.label_block for sample in samples]
        if blocks != self._cache_blocks:
            labels = [sample.labels() for sample in samples]
            self._cache_blocks = blocks
            self._cache_sizes = (
                _largest(labels, series.block_size_label),
                _largest(labels, series.num_blocks_label),
            )
        return self._cache_sizes

    def _whole(
        self, exposition: Exposition, selectors: Sequence[Selector], whole: Callable[[list[int]], int]
    ) -> int | None:
        """One number out of the ranks' own, None when none tells one."""
        values = (each.value for name in selectors for each in self._samples(exposition, name))
        return whole([int(value) for value in values if 1 <= value <= MAX_GAUGE] or [0]) or None


def _names(text: str) -> frozenset[str]:
    """Adapters of a label, which separates them by commas."""
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _largest(caches: Sequence[dict[str, str]], label: str) -> int | None:
    texts = [labels.get(label, "") for labels in caches]
    numbers = [int(text) for text in texts if text.isdecimal() and len(text) <= MAX_DIGITS]
    return max((number for number in numbers if number > 0), default=None)
