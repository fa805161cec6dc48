"""`load-aware-scorer`: prefers endpoints with shorter queues, on an absolute scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from .model import Candidate, Rating, Ratings, RequestView
from .params import PluginParams
from .registry import Registry


class LoadAwareParams(PluginParams, frozen=True):
    """Parameters of `load-aware-scorer`."""

    threshold: Annotated[int, Meta(ge=1)] = 128
    """Waiting requests at which an endpoint counts as full."""


class LoadAwareScorer:
    """`0.5 * (1 - min(q, threshold) / threshold)`; an empty queue rates 0.5, an unknown one 0."""

    type = "load-aware-scorer"

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the number of waiting requests."""
        ratings: list[Rating] = []
        for candidate in candidates:
            load = candidate.load
            if load is None:
                ratings.append(Rating(raw=None, score=0.0))
                continue
            score = 0.5 * (1 - min(load.waiting, self._threshold) / self._threshold)
            ratings.append(Rating(raw=float(load.waiting), score=score, age_s=load.age_s(request.now)))
        return ratings


def register(registry: Registry) -> None:
    """Adds `load-aware-scorer`."""
    registry.scorers.add(
        LoadAwareScorer.type, LoadAwareParams, lambda params, _: LoadAwareScorer(params.threshold)
    )
