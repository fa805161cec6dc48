"""`prefix-cache-scorer`: prefers endpoints that hold more of the prompt in one tier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from .model import Candidate, Rating, Ratings, RequestView
from .registry import PluginParams, Registry


class PrefixCacheParams(PluginParams, frozen=True):
    """Parameters of `prefix-cache-scorer`."""

    tier: Annotated[str, Meta(min_length=1)]
    """Name of a configured tier, required."""


class PrefixCacheScorer:
    """`credit * blocks / n_blocks`, where blocks are gap-free from block 0 in this tier alone.

    `tier` is None when the fleet has no such tier; every score is 0 then.
    """

    type = "prefix-cache-scorer"

    def __init__(self, tier: str | None) -> None:
        self._tier = tier

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:  # noqa: ARG002 (Scorer)
        """One rating a candidate; raw is the number of blocks, None when the request has no block keys."""
        return [self._rating(candidate) for candidate in candidates]

    def _rating(self, candidate: Candidate) -> Rating:
        prefix = candidate.prefix
        if prefix is None or self._tier is None:
            return Rating(raw=None, score=0.0)
        blocks = prefix.blocks_in(self._tier)
        share = blocks / prefix.n_blocks if prefix.n_blocks else 0.0
        return Rating(raw=float(blocks), score=min(1.0, max(0.0, candidate.credit * share)))


def register(registry: Registry) -> None:
    """Adds `prefix-cache-scorer`."""
    registry.add_scorer(
        PrefixCacheScorer.type, PrefixCacheParams, lambda params: PrefixCacheScorer(params.tier)
    )
