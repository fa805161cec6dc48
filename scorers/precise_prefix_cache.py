"""`precise-prefix-cache-scorer`: `prefix-cache-scorer` with a precise producer of its own, the reference's older form."""

from __future__ import annotations

from .core.params import BuildContext
from .core.registry import Registry
from .prefix_cache import PrefixCacheScorer
from .producers import PreciseParams


class PrecisePrefixCacheScorer(PrefixCacheScorer):
    """`credit * sum(tier credit * blocks) / n_blocks` over the union prefix."""

    type = "precise-prefix-cache-scorer"


def register(registry: Registry) -> None:
    """Adds `precise-prefix-cache-scorer`, with the parameters of `precise-prefix-cache-producer`."""
    registry.scorers.add(PrecisePrefixCacheScorer.type, PreciseParams, _make)


def _make(_: PreciseParams, context: BuildContext) -> PrecisePrefixCacheScorer:
    return PrecisePrefixCacheScorer(context.prefix_source(tier=None, producer=""))
