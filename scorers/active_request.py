"""`active-request-scorer`: prefers endpoints with fewer requests in flight through this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from .core.model import Candidate, Ratings, RequestView
from .core.params import PluginParams
from .core.rating_column import RatingColumn
from .core.registry import Registry


class ActiveRequestParams(PluginParams, frozen=True):
    """Parameters of `active-request-scorer`."""

    idle_threshold: Annotated[int, Meta(ge=0)] = 0
    """Requests in flight up to which an endpoint counts as idle and scores 1."""
    max_busy_score: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Highest score of an endpoint that is not idle."""
    in_flight_load_producer_name: str = ""
    """Accepted, no effect: there is one accounting."""
    request_timeout: str = ""
    """Accepted, no effect; the reference ignores it too."""


class ActiveRequestScorer:
    """1 up to `idle_threshold` requests in flight, above it `(max - n) / max * max_busy_score`.

    The lightest count is not subtracted, so equal counts above the threshold all rate 0.
    """

    type = "active-request-scorer"

    def __init__(self, *, idle_threshold: int, max_busy_score: float) -> None:
        self._idle_threshold, self._max_busy_score = idle_threshold, max_busy_score

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:  # noqa: ARG002 (Scorer)
        """One rating a candidate; raw is the number of requests in flight."""
        counts = [candidate.in_flight.requests for candidate in candidates]
        idle, most, best = self._idle_threshold, max(counts, default=0), self._max_busy_score
        return RatingColumn([1.0 if n <= idle else (most - n) / most * best for n in counts], counts)


def register(registry: Registry) -> None:
    """Adds `active-request-scorer`."""
    registry.scorers.add(
        ActiveRequestScorer.type,
        ActiveRequestParams,
        lambda params, _: ActiveRequestScorer(
            idle_threshold=params.idle_threshold, max_busy_score=params.max_busy_score
        ),
    )
