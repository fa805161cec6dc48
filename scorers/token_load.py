"""`token-load-scorer`: prefers endpoints with fewer uncached prompt tokens in flight, including this request."""

from __future__ import annotations

import math

import numpy as np

from .core.candidates import Candidates
from .core.model import RequestView
from .core.params import PluginParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry

DEFAULT_THRESHOLD = 4_194_304
"""Source: the reference's default."""


class TokenLoadParams(PluginParams, frozen=True):
    """Parameters of `token-load-scorer`."""

    queue_threshold_tokens: int = DEFAULT_THRESHOLD
    """Tokens at which an endpoint counts as full; 0 or less means the default, 128 requests of 32,768 tokens."""
    in_flight_load_producer_name: str = ""
    """Accepted without effect: kvatlas keeps one account of requests in flight."""


class TokenLoadScorer:
    """Score `1 - min(t, threshold) / threshold` for t uncached tokens in flight, including those of this request.

    If `inflight-load-producer` adds estimated output tokens, those of this request count too.
    Ties: equal tokens score the same, and so do all at or above the threshold.
    """

    type = "token-load-scorer"
    max_load_age_s = math.inf

    def __init__(self, threshold_tokens: int) -> None:
        self._threshold = threshold_tokens

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the number of tokens."""
        full = self._threshold
        tokens = candidates.in_flight_tokens + candidates.uncached_tokens(request) + request.output_tokens
        return Ratings(1 - np.minimum(tokens, full) / full, Inputs(tokens))


def register(registry: Registry) -> None:
    """Register `token-load-scorer`."""
    registry.scorers.add(
        TokenLoadScorer.type,
        TokenLoadParams,
        lambda params, _: TokenLoadScorer(
            params.queue_threshold_tokens if params.queue_threshold_tokens > 0 else DEFAULT_THRESHOLD
        ),
    )
