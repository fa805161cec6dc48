"""`running-requests-size-scorer`: prefers endpoints with fewer running requests."""

from __future__ import annotations

from .core.candidates import Candidates
from .core.model import RequestView
from .core.operations import rate_by_load
from .core.params import NoParams
from .core.ratings import RUNNING, Ratings
from .core.registry import Registry


class RunningRequestsScorer:
    """Score `(max - r) / (max - min)` over the known numbers of running requests; an unknown number scores 0.

    Ties: equal numbers score the same; all score 1 if every known number is equal.
    """

    type = "running-requests-size-scorer"

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the number of running requests."""
        return Ratings(rate_by_load(candidates.running), RUNNING)


def register(registry: Registry) -> None:
    """Register `running-requests-size-scorer`, which takes no parameters."""
    registry.scorers.add(
        RunningRequestsScorer.type, NoParams, lambda _params, _context: RunningRequestsScorer()
    )
