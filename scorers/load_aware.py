"""`load-aware-scorer`: prefers endpoints with shorter queues, on an absolute scale."""

from __future__ import annotations

import numpy as np

from .core.candidates import Candidates
from .core.columns import unknown_as_zero
from .core.model import RequestView
from .core.params import PluginParams
from .core.ratings import WAITING, Ratings
from .core.registry import Registry

DEFAULT_THRESHOLD = 128
"""Threshold if none above 0 is given. Source: the reference."""


class LoadAwareParams(PluginParams, frozen=True):
    """Parameters of `load-aware-scorer`."""

    threshold: int = DEFAULT_THRESHOLD
    """Waiting requests at which an endpoint counts as full; 0 or less: the default."""


class LoadAwareScorer:
    """Score `0.5 * (1 - min(q, threshold) / threshold)` for q waiting requests; an unknown queue scores 0.

    The maximum is 0.5, for an empty queue. Ties: equal queues score the same, and so do all at or above the threshold.
    """

    type = "load-aware-scorer"

    def __init__(self, threshold: int) -> None:
        self._threshold = threshold

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the number of waiting requests."""
        full = self._threshold
        return Ratings(unknown_as_zero(0.5 * (1 - np.minimum(candidates.waiting, full) / full)), WAITING)


def register(registry: Registry) -> None:
    """Register `load-aware-scorer`."""
    registry.scorers.add(
        LoadAwareScorer.type,
        LoadAwareParams,
        lambda params, _: LoadAwareScorer(params.threshold if params.threshold > 0 else DEFAULT_THRESHOLD),
    )
