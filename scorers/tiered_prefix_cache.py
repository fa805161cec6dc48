"""`tiered-prefix-cache-scorer`: prefers endpoints that hold more of the prompt in any tier, faster tiers more."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import field

from .core.params import BuildContext, PluginParams
from .core.prefix_source import TierCredits
from .core.registry import Registry
from .prefix_cache import PrefixCacheScorer, Share

DEFAULT_CREDITS = (1.0, 0.8, 0.4)
"""Credits by position, fastest first, and the last for every further tier: the reference's for GPU, CPU and storage."""


class TieredPrefixCacheParams(PluginParams, frozen=True):
    """Parameters of `tiered-prefix-cache-scorer`."""

    credits: dict[str, Share] = field(default_factory=dict[str, Share])
    """Worth of a cached block by the name of its tier; default 1 for the first tier, 0.8 for the second, 0.4 beyond."""


class TieredPrefixCacheScorer(PrefixCacheScorer):
    """`credit * sum(tier credit * blocks) / n_blocks` over the union prefix, each block in its fastest tier.

    Args:
        tier_credits: worth of a block by tier, 0 to 1, fastest tier first.
    """

    type = "tiered-prefix-cache-scorer"

    def __init__(self, tier_credits: Sequence[float]) -> None:
        super().__init__(TierCredits(tuple(tier_credits)))


def register(registry: Registry) -> None:
    """Adds `tiered-prefix-cache-scorer`."""
    registry.scorers.add(TieredPrefixCacheScorer.type, TieredPrefixCacheParams, _make)


def _make(params: TieredPrefixCacheParams, context: BuildContext) -> TieredPrefixCacheScorer:
    given = {context.known_tier(tier, "credits"): credit for tier, credit in params.credits.items()}
    last = len(DEFAULT_CREDITS) - 1
    return TieredPrefixCacheScorer(
        [given.get(tier, DEFAULT_CREDITS[min(place, last)]) for place, tier in enumerate(context.tiers)]
    )
