"""`running-requests-size-scorer`: prefers endpoints that serve fewer requests."""

from __future__ import annotations

from collections.abc import Sequence

from .core.load_rank import place_between
from .core.model import Candidate, Ratings, RequestView
from .core.params import NoParams
from .core.registry import Registry


class RunningRequestsScorer:
    """`(max - r) / (max - min)` over the known numbers of running requests, 1 when all equal, 0 for an unknown one."""

    type = "running-requests-size-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the number of running requests."""
        return place_between(candidates, lambda load: load.running, now=request.now)


def register(registry: Registry) -> None:
    """Adds `running-requests-size-scorer`, which takes no parameters."""
    registry.scorers.add(
        RunningRequestsScorer.type, NoParams, lambda _params, _context: RunningRequestsScorer()
    )
