"""`token-load-scorer`: prefers endpoints with fewer uncached prompt tokens ahead, those of this request included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from .model import Candidate, Rating, Ratings, RequestView
from .params import PluginParams
from .registry import Registry


class TokenLoadParams(PluginParams, frozen=True):
    """Parameters of `token-load-scorer`."""

    queue_threshold_tokens: Annotated[int, Meta(ge=1)] = 4_194_304
    """Tokens at which an endpoint counts as full; the default is 128 requests of 32,768 tokens."""
    in_flight_load_producer_name: str = ""
    """Accepted, no effect: there is one accounting."""


class TokenLoadScorer:
    """`1 - min(t, threshold) / threshold`, t uncached tokens in flight on the endpoint, those of this request included."""

    type = "token-load-scorer"

    def __init__(self, threshold_tokens: int) -> None:
        self._threshold = threshold_tokens

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the number of tokens."""
        return [
            self._rating(candidate.in_flight.tokens + candidate.uncached_tokens(request))
            for candidate in candidates
        ]

    def _rating(self, tokens: int) -> Rating:
        return Rating(raw=float(tokens), score=1 - min(tokens, self._threshold) / self._threshold)


def register(registry: Registry) -> None:
    """Adds `token-load-scorer`."""
    registry.scorers.add(
        TokenLoadScorer.type,
        TokenLoadParams,
        lambda params, _: TokenLoadScorer(params.queue_threshold_tokens),
    )
