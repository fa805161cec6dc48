"""`kv-cache-utilization-scorer`: prefers endpoints whose KV cache is less full."""

from __future__ import annotations

from collections.abc import Sequence

from .core.model import Candidate, Ratings, RequestView
from .core.params import NoParams
from .core.rating_column import RatingColumn
from .core.registry import Registry


class KVCacheUtilizationScorer:
    """Score `1 - utilization`, independent of the other candidates; an unknown load scores 0.

    Ties: equal utilizations score the same.
    """

    type = "kv-cache-utilization-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """Return one rating per candidate; raw is the scraped utilization, 0 to 1."""
        scraped = [None if each.load is None else each.load.kv_utilization for each in candidates]
        scores = [0.0 if used is None else min(1.0, max(0.0, 1.0 - used)) for used in scraped]
        return RatingColumn(scores, scraped, loaded=candidates, now=request.now)


def register(registry: Registry) -> None:
    """Register `kv-cache-utilization-scorer`, which takes no parameters."""
    registry.scorers.add(
        KVCacheUtilizationScorer.type, NoParams, lambda _params, _context: KVCacheUtilizationScorer()
    )
