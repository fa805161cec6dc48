"""`queue-scorer`: prefers endpoints with fewer waiting requests."""

from __future__ import annotations

from collections.abc import Sequence

from .model import Candidate, Rating, Ratings, RequestView
from .registry import NoParams, Registry


class QueueScorer:
    """`(max - q) / (max - min)` over the known queues, 1 when they are all equal, 0 for an unknown queue."""

    type = "queue-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the number of waiting requests.

        An unknown load rates 0 and takes no part in min and max: an endpoint that nobody can see must not look idle.
        """
        known = [candidate.load.waiting for candidate in candidates if candidate.load is not None]
        longest = max(known, default=0)
        spread = longest - min(known, default=0)
        ratings: list[Rating] = []
        for candidate in candidates:
            load = candidate.load
            if load is None:
                ratings.append(Rating(raw=None, score=0.0))
                continue
            score = (longest - load.waiting) / spread if spread else 1.0
            ratings.append(Rating(raw=float(load.waiting), score=score, age_s=load.age_s(request.now)))
        return ratings


def register(registry: Registry) -> None:
    """Adds `queue-scorer`, which takes no parameters."""
    registry.add_scorer(QueueScorer.type, NoParams, lambda _: QueueScorer())
