"""`kv-cache-utilization-scorer`: prefers endpoints whose KV cache is less in use."""

from __future__ import annotations

from collections.abc import Sequence

from .core.model import Candidate, Ratings, RequestView
from .core.params import NoParams
from .core.rating_column import RatingColumn
from .core.registry import Registry


class KVCacheUtilizationScorer:
    """`1 - utilization`, absolute: the other candidates do not enter. An unknown load rates 0."""

    type = "kv-cache-utilization-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the utilization as told, 0 to 1."""
        told = [None if each.load is None else each.load.kv_utilization for each in candidates]
        scores = [0.0 if used is None else min(1.0, max(0.0, 1.0 - used)) for used in told]
        return RatingColumn(scores, told, loaded=candidates, now=request.now)


def register(registry: Registry) -> None:
    """Adds `kv-cache-utilization-scorer`, which takes no parameters."""
    registry.scorers.add(
        KVCacheUtilizationScorer.type, NoParams, lambda _params, _context: KVCacheUtilizationScorer()
    )
