"""Settings of the fleet, derived from a configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ..configs.approximate import ApproximateConfig
from ..configs.dcgm import GPU_UTILIZATION
from ..configs.engines import EngineCatalog
from ..configs.schema import KVAtlasConfig, TierConfig
from ..configs.scraping import MetricsScrapeConfig
from ..events.stream import Trust
from ..indexer.tiers import TierId, TierSource, TierSpec
from .scrape.schedule import Intervals
from .scrape.target import ScrapeSettings


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Settings of the fleet.

    Attributes:
        trust_credit: factor of prefix scores per trust in the publisher.
        capacities: blocks per server in each tier; None for no bound.
        auto_capacity_tiers: tiers whose bound is derived per endpoint instead.
        engines: names of the series in which endpoints report their load.
        predict_s: lifetime of a prediction that no event confirms, seconds; None switches predictions off.
        audit_lowers_credit: whether endpoints lose credit if their engines reuse less than expected.
        approximate: sizes of blocks and tiers that are known from routing alone.
        other_attributes: attributes of endpoints that do not come with their load.
    """

    trust_credit: Mapping[Trust, float]
    capacities: tuple[int | None, ...]
    auto_capacity_tiers: tuple[TierId, ...]
    engines: EngineCatalog
    predict_s: float | None = None
    audit_lowers_credit: bool = True
    approximate: ApproximateConfig = field(default_factory=ApproximateConfig)
    other_attributes: tuple[str, ...] = ()

    def configured_capacity(self, tier: TierId) -> int | Literal["auto", "unlimited"]:
        """Return the configured blocks per server; `unlimited` also for a tier made for an unknown medium."""
        if tier in self.auto_capacity_tiers:
            return "auto"
        return (self.capacities[tier] if tier < len(self.capacities) else None) or "unlimited"


def fleet_settings(config: KVAtlasConfig) -> FleetSettings:
    """Return the fleet's settings of a configuration."""
    credit = config.events.trust_credit
    return FleetSettings(
        trust_credit={trust: getattr(credit, trust.value) for trust in Trust},
        capacities=tuple(spec.capacity for spec in tier_specs(config.tiers)),
        auto_capacity_tiers=tuple(
            TierId(number)
            for number, tier in enumerate(config.tiers)
            if tier.lru_capacity_per_server == "auto" and tier.scope == "server"
        ),
        engines=EngineCatalog(config.metrics_scrape),
        audit_lowers_credit=config.audit.lower_credit,
        other_attributes=(GPU_UTILIZATION,) if config.metrics_scrape.dcgm.enabled else (),
        predict_s=config.predictions.ttl if config.predictions.enabled else None,
        approximate=config.approximate,
    )


def scrape_settings(config: MetricsScrapeConfig) -> ScrapeSettings:
    """Return the scrape settings of a configuration."""
    intervals = Intervals(config.interval, config.idle_interval_s)
    return ScrapeSettings(intervals, timeout_s=config.timeout, tls=config.tls)


def tier_specs(tiers: Iterable[TierConfig]) -> list[TierSpec]:
    """Return one spec per tier, in the same order."""
    return [_tier_spec(tier) for tier in tiers]


def _tier_spec(tier: TierConfig) -> TierSpec:
    return TierSpec(
        name=tier.name,
        media=tier.media,
        capacity=tier.lru_capacity_per_server if isinstance(tier.lru_capacity_per_server, int) else None,
        chunk_blocks=tier.offload_chunk_blocks if isinstance(tier.offload_chunk_blocks, int) else None,
        source=None if tier.source == "auto" else TierSource(tier.source),
        shared=tier.scope == "shared",
        cleared_on_reset=tier.clear_on_reset,
    )
