"""Configured tiers as the index takes them."""

from __future__ import annotations

from collections.abc import Iterable

from ...configs.schema import TierConfig
from ...indexer.tiers import TierSource, TierSpec


def tier_specs(tiers: Iterable[TierConfig]) -> list[TierSpec]:
    """One spec a tier, in the same order."""
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
