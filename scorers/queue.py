"""`queue-scorer`: prefers endpoints with fewer waiting requests."""

from __future__ import annotations

from collections.abc import Sequence

from .core.load_rank import place_between
from .core.model import Candidate, Ratings, RequestView
from .core.params import NoParams
from .core.registry import Registry


class QueueScorer:
    """`(max - q) / (max - min)` over the known queues, 1 when they are all equal, 0 for an unknown queue."""

    type = "queue-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the number of waiting requests."""
        return place_between(candidates, lambda load: load.waiting, now=request.now)


def register(registry: Registry) -> None:
    """Adds `queue-scorer`, which takes no parameters."""
    registry.scorers.add(QueueScorer.type, NoParams, lambda _params, _context: QueueScorer())
