"""`kv-cache-utilization-scorer`: prefers endpoints whose KV cache is less in use."""

from __future__ import annotations

from collections.abc import Sequence

from .model import Candidate, Rating, Ratings, RequestView
from .params import NoParams
from .registry import Registry


class KVCacheUtilizationScorer:
    """`1 - utilization`, absolute: the other candidates do not enter. An unknown load rates 0."""

    type = "kv-cache-utilization-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the utilization as told, 0 to 1."""
        ratings: list[Rating] = []
        for candidate in candidates:
            load = candidate.load
            if load is None:
                ratings.append(Rating(raw=None, score=0.0))
                continue
            score = min(1.0, max(0.0, 1.0 - load.kv_utilization))
            ratings.append(Rating(raw=load.kv_utilization, score=score, age_s=load.age_s(request.now)))
        return ratings


def register(registry: Registry) -> None:
    """Adds `kv-cache-utilization-scorer`, which takes no parameters."""
    registry.scorers.add(
        KVCacheUtilizationScorer.type, NoParams, lambda _params, _context: KVCacheUtilizationScorer()
    )
