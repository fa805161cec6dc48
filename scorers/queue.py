"""`queue-scorer`: prefers endpoints with fewer waiting requests."""

from __future__ import annotations

from .core.candidates import Candidates
from .core.model import RequestView
from .core.operations import rate_by_load
from .core.params import NoParams
from .core.ratings import WAITING, Ratings
from .core.registry import Registry


class QueueScorer:
    """Score `(max - q) / (max - min)` over the known queues of waiting requests; an unknown queue scores 0.

    Ties: equal queues score the same; all score 1 if every known queue is equal.
    """

    type = "queue-scorer"

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the number of waiting requests."""
        return Ratings(rate_by_load(candidates.waiting), WAITING)


def register(registry: Registry) -> None:
    """Register `queue-scorer`, which takes no parameters."""
    registry.scorers.add(QueueScorer.type, NoParams, lambda _params, _context: QueueScorer())
