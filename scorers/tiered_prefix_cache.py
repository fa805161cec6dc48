"""`tiered-prefix-cache-scorer`: prefers endpoints that hold more of the prompt in any tier, with more credit for faster tiers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import field

from .core.params import BuildContext, PluginParams
from .core.prefix_source import TierCredits
from .core.registry import Registry
from .prefix_cache import PrefixCacheScorer, Share

DEFAULT_CREDITS = (1.0, 0.8, 0.4)
"""Credits by position, fastest first; the last applies to every further tier. Source: the reference, for GPU, CPU, storage."""


class TieredPrefixCacheParams(PluginParams, frozen=True):
    """Parameters of `tiered-prefix-cache-scorer`."""

    credits: dict[str, Share] = field(default_factory=dict[str, Share])
    """Credit of a cached block by the name of its tier; default 1 for the first tier, 0.8 for the second, 0.4 for all further."""


class TieredPrefixCacheScorer(PrefixCacheScorer):
    """Score `credit * sum(tier credit * blocks) / n_blocks` over the union prefix, each block in its fastest tier.

    Ties: endpoints with the same credited blocks score the same; without block keys all score 0.

    Args:
        tier_credits: credit of a block by tier, 0 to 1, fastest tier first.
    """

    type = "tiered-prefix-cache-scorer"
    max_load_age_s = math.inf

    def __init__(self, tier_credits: Sequence[float]) -> None:
        super().__init__(TierCredits(tuple(tier_credits)))


def register(registry: Registry) -> None:
    """Register `tiered-prefix-cache-scorer`."""
    registry.scorers.add(TieredPrefixCacheScorer.type, TieredPrefixCacheParams, _make)


def _make(params: TieredPrefixCacheParams, context: BuildContext) -> TieredPrefixCacheScorer:
    given = {context.known_tier(tier, "credits"): credit for tier, credit in params.credits.items()}
    last = len(DEFAULT_CREDITS) - 1
    return TieredPrefixCacheScorer(
        [given.get(tier, DEFAULT_CREDITS[min(place, last)]) for place, tier in enumerate(context.tiers)]
    )
