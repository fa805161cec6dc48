"""`token-load-scorer`: prefers endpoints with fewer uncached prompt tokens in flight, including this request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from .core.model import Candidate, Ratings, RequestView
from .core.params import PluginParams
from .core.rating_column import RatingColumn
from .core.registry import Registry


class TokenLoadParams(PluginParams, frozen=True):
    """Parameters of `token-load-scorer`."""

    queue_threshold_tokens: Annotated[int, Meta(ge=1)] = 4_194_304
    """Tokens at which an endpoint counts as full; the default is 128 requests of 32,768 tokens."""
    in_flight_load_producer_name: str = ""
    """Accepted without effect: kvatlas keeps one account of requests in flight."""


class TokenLoadScorer:
    """Score `1 - min(t, threshold) / threshold` for t uncached tokens in flight, including those of this request.

    Ties: equal tokens score the same, and so do all at or above the threshold.
    """

    type = "token-load-scorer"

    def __init__(self, threshold_tokens: int) -> None:
        self._threshold = threshold_tokens

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """Return one rating per candidate; raw is the number of tokens."""
        full = self._threshold
        tokens = [each.in_flight.tokens + each.uncached_tokens(request) for each in candidates]
        return RatingColumn([1 - min(n, full) / full for n in tokens], tokens)


def register(registry: Registry) -> None:
    """Register `token-load-scorer`."""
    registry.scorers.add(
        TokenLoadScorer.type,
        TokenLoadParams,
        lambda params, _: TokenLoadScorer(params.queue_threshold_tokens),
    )
