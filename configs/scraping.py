"""The section `metricsScrape` of the configuration as typed data."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from .section import Section
from .units import Duration


class EngineConfig(Section, frozen=True):
    """Series of one engine, each `name` or `name{label=value}`; empty: it has none, absent: as kvatlas knows it."""

    waiting: str | None = None
    """Gauge of queued requests."""
    running: str | None = None
    """Gauge of requests being served."""
    kv_utilization: str | None = None
    """Gauge of the used part of the KV blocks, 0 to 1."""
    block_size: str | None = None
    """Gauge of the tokens a block."""
    num_blocks: str | None = None
    """Gauge of one rank's GPU blocks."""
    cache_info: str | None = None
    """Series with block size and number of blocks in its labels."""
    block_size_label: str | None = None
    """Its label with the tokens a block."""
    num_blocks_label: str | None = None
    """Its label with the GPU blocks of all ranks."""
    lora_info: str | None = None
    """Series with the LoRA adapters in labels named as vLLM's, whose value is the time of writing."""


LONGEST_IDLE_S = 1.0
"""Time between two scrapes of an idle endpoint where the configuration does not say."""


class MetricsScrapeConfig(Section, frozen=True):
    """Reading the endpoints' /metrics."""

    interval: Duration = Duration(0.05)
    """Time between two scrapes of a busy endpoint."""
    idle_interval: Duration | None = None
    """Longest time between two scrapes of an idle endpoint; absent: half of `staleAfter`, at most 1 s, at least `interval`."""
    stale_after: Duration = Duration(2.0)
    """Age past which a load is not believed."""
    timeout: Duration = Duration(1.0)
    """Limit of one scrape."""
    engine: Annotated[str, Meta(min_length=1)] = "auto"
    """Engine of endpoints whose label `llm-d.ai/engine-type` names none; auto: the one whose series are there."""
    engines: dict[str, EngineConfig] = {}
    """Names of series that differ, by engine; engines of your own too."""

    @property
    def idle_interval_s(self) -> float:
        """Longest time between two scrapes of an idle endpoint, in seconds."""
        return max(self.interval, self.idle_interval or min(LONGEST_IDLE_S, self.stale_after / 2))
