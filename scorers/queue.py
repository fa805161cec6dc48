"""`queue-scorer`: prefers endpoints with fewer waiting requests."""

from __future__ import annotations

from collections.abc import Sequence

from .core.load_rank import rate_by_load
from .core.model import Candidate, Ratings, RequestView
from .core.params import NoParams
from .core.registry import Registry


class QueueScorer:
    """Score `(max - q) / (max - min)` over the known queues of waiting requests; an unknown queue scores 0.

    Ties: equal queues score the same; all score 1 if every known queue is equal.
    """

    type = "queue-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """Return one rating per candidate; raw is the number of waiting requests."""
        return rate_by_load(candidates, lambda load: load.waiting, now=request.now)


def register(registry: Registry) -> None:
    """Register `queue-scorer`, which takes no parameters."""
    registry.scorers.add(QueueScorer.type, NoParams, lambda _params, _context: QueueScorer())
