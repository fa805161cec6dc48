"""`load-aware-scorer`: prefers endpoints with shorter queues, on an absolute scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from .core.model import Candidate, Ratings, RequestView
from .core.params import PluginParams
from .core.rating_column import RatingColumn
from .core.registry import Registry


class LoadAwareParams(PluginParams, frozen=True):
    """Parameters of `load-aware-scorer`."""

    threshold: Annotated[int, Meta(ge=1)] = 128
    """Waiting requests at which an endpoint counts as full."""


class LoadAwareScorer:
    """Score `0.5 * (1 - min(q, threshold) / threshold)` for q waiting requests; an unknown queue scores 0.

    The maximum is 0.5, for an empty queue. Ties: equal queues score the same, and so do all at or above the threshold.
    """

    type = "load-aware-scorer"

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """Return one rating per candidate; raw is the number of waiting requests."""
        full = self._threshold
        queues = [None if each.load is None else each.load.waiting for each in candidates]
        scores = [0.0 if n is None else 0.5 * (1 - min(n, full) / full) for n in queues]
        return RatingColumn(scores, queues, loaded=candidates, now=request.now)


def register(registry: Registry) -> None:
    """Register `load-aware-scorer`."""
    registry.scorers.add(
        LoadAwareScorer.type, LoadAwareParams, lambda params, _: LoadAwareScorer(params.threshold)
    )
