"""`precise-prefix-cache-scorer`: an older form of the reference: `prefix-cache-scorer` with its own precise producer."""

from __future__ import annotations

import math

from .core.params import BuildContext
from .core.registry import Registry
from .prefix_cache import PrefixCacheScorer
from .producers import PreciseParams


class PrecisePrefixCacheScorer(PrefixCacheScorer):
    """Score `credit * sum(tier credit * blocks) / n_blocks` over the union prefix.

    Ties: endpoints with the same credited blocks score the same; without block keys all score 0.
    """

    type = "precise-prefix-cache-scorer"
    max_load_age_s = math.inf


def register(registry: Registry) -> None:
    """Register `precise-prefix-cache-scorer`, with the parameters of `precise-prefix-cache-producer`."""
    registry.scorers.add(PrecisePrefixCacheScorer.type, PreciseParams, _make)


def _make(_: PreciseParams, context: BuildContext) -> PrecisePrefixCacheScorer:
    return PrecisePrefixCacheScorer(context.prefix_source(tier=None, producer=""))
