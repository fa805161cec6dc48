"""`kv-cache-utilization-scorer`: prefers endpoints whose KV cache is less full."""

from __future__ import annotations

from .core.candidates import Candidates
from .core.model import RequestView
from .core.operations import rate_by_free_part
from .core.params import NoParams
from .core.ratings import KV_UTILIZATION, Ratings
from .core.registry import Registry


class KVCacheUtilizationScorer:
    """Score `1 - utilization`, independent of the other candidates; an unknown load scores 0.

    Ties: equal utilizations score the same.
    """

    type = "kv-cache-utilization-scorer"

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the scraped utilization, 0 to 1."""
        return Ratings(rate_by_free_part(candidates.kv_utilization), KV_UTILIZATION)


def register(registry: Registry) -> None:
    """Register `kv-cache-utilization-scorer`, which takes no parameters."""
    registry.scorers.add(
        KVCacheUtilizationScorer.type, NoParams, lambda _params, _context: KVCacheUtilizationScorer()
    )
