"""`active-request-scorer`: prefers endpoints with fewer requests in flight from this process."""

from __future__ import annotations

import math

import numpy as np

from .core.candidates import Candidates
from .core.model import RequestView
from .core.params import PluginParams
from .core.ratings import IN_FLIGHT_REQUESTS, Ratings
from .core.registry import Registry


class ActiveRequestParams(PluginParams, frozen=True):
    """Parameters of `active-request-scorer`."""

    idle_threshold: int = 0
    """Requests in flight up to which an endpoint counts as idle and scores 1; below 0 means 0."""
    max_busy_score: float = 1.0
    """Highest score of an endpoint that is not idle; a number outside of 0 to 1 means 1."""
    in_flight_load_producer_name: str = ""
    """Accepted without effect: kvatlas keeps one account of requests in flight."""
    request_timeout: str = ""
    """Accepted without effect; the reference ignores it too."""


class ActiveRequestScorer:
    """Score by requests in flight: 1 up to `idle_threshold`, above it `(max - n) / max * max_busy_score`.

    The minimum is not subtracted.
    Ties: equal counts score the same; if all counts above the threshold are equal, these endpoints score 0.
    """

    type = "active-request-scorer"
    max_load_age_s = math.inf

    def __init__(self, *, idle_threshold: int, max_busy_score: float) -> None:
        self._idle_threshold, self._max_busy_score = idle_threshold, max_busy_score

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the number of requests in flight."""
        n, idle = candidates.in_flight_requests, self._idle_threshold
        most = n.max(initial=1.0)  # at least 1, so that an idle fleet divides by something
        scores = np.where(n <= idle, 1.0, (most - n) / most * self._max_busy_score)
        return Ratings(scores, IN_FLIGHT_REQUESTS)


def register(registry: Registry) -> None:
    """Register `active-request-scorer`."""
    registry.scorers.add(
        ActiveRequestScorer.type,
        ActiveRequestParams,
        lambda params, _: ActiveRequestScorer(
            idle_threshold=max(0, params.idle_threshold),
            max_busy_score=params.max_busy_score if 0 <= params.max_busy_score <= 1 else 1.0,
        ),
    )
