"""`prefix-cache-scorer`: prefers endpoints that hold more of the prompt."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from msgspec import Meta

from .burst_prefix_cache import BurstScorer
from .core.candidates import Candidates
from .core.columns import FloatArray
from .core.model import RequestView
from .core.operations import rate_by_share
from .core.params import BuildContext, PluginParams
from .core.prefix_source import ApproxProducer, BurstProducer, PrefixSource
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .producers import DEFAULT_LRU_CAPACITY, Limit, Size

Share = Annotated[float, Meta(ge=0, le=1)]


class PrefixCacheParams(PluginParams, frozen=True):
    """Parameters of `prefix-cache-scorer`."""

    tier: str | None = None
    """Name of a configured tier; absent: the source of the named producer, or the fastest tier if none is named."""
    prefix_match_info_producer_name: str = ""
    """Name of a prefix cache producer in `plugins`."""
    match_length_weight: Share = 0.0
    """Part of the score that is computed from the length of the match instead of its share of the prompt."""
    match_length_scale_tokens: Size = 8192
    """Cached tokens at which that part reaches its maximum."""
    auto_tune: bool | None = None
    """As in `approx-prefix-cache-producer`, for a scorer that is its own producer."""
    lru_capacity_per_server: Size | None = None
    """As in `approx-prefix-cache-producer`, for a scorer that is its own producer."""
    block_size: Limit | None = None
    """Accepted without effect: each endpoint is indexed at its own block size."""
    block_size_tokens: Limit | None = None
    """As `blockSize`."""
    max_prefix_blocks_to_match: Limit | None = None
    """Accepted without effect: the whole prompt is matched."""

    def producer(self) -> ApproxProducer | None:
        """Return the index that the scorer's own parameters describe, None if they describe none."""
        if self.auto_tune is None and self.lru_capacity_per_server is None:
            return None
        capacity = self.lru_capacity_per_server or DEFAULT_LRU_CAPACITY
        return ApproxProducer(
            None if self.auto_tune is not False else capacity,
            default_capacity=capacity,
            min_block_size=1,  # versions of the reference with these parameters had no minimum
        )


class PrefixCacheScorer:
    """Score `credit * (w * L**2 + (1 - w) * blocks / n_blocks)`, with `L = min(1, blocks * block_size / scale)`.

    Ties: endpoints with the same blocks and credit score the same; without block keys all score 0.

    Args:
        source: counts the cached blocks of a match.
        length_weight: w, 0 to 1.
        length_scale_tokens: scale, at least 1.
    """

    type = "prefix-cache-scorer"
    max_load_age_s = math.inf

    def __init__(
        self, source: PrefixSource, *, length_weight: float = 0.0, length_scale_tokens: int = 8192
    ) -> None:
        self._source = source
        self._length_weight, self._length_scale = length_weight, length_scale_tokens
        self._inputs = Inputs(self._blocks)

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the number of blocks, None if the request has no block keys."""
        prefix = candidates.prefix
        if prefix is None:
            return Ratings(np.zeros(len(candidates)), self._inputs)
        blocks = self._source.blocks(prefix)
        if not self._length_weight:
            return Ratings(rate_by_share(blocks, prefix.n_blocks, candidates.credit), self._inputs)
        length = np.minimum(1.0, blocks * prefix.block_size / self._length_scale)
        score = self._length_weight * length * length + (1 - self._length_weight) * prefix.share(blocks)
        return Ratings(np.maximum(0.0, np.minimum(1.0, candidates.credit * score)), self._inputs)

    def _blocks(self, candidates: Candidates) -> FloatArray:
        prefix = candidates.prefix
        if prefix is None:
            return np.full(len(candidates), np.nan)
        return prefix.or_unknown(self._source.blocks(prefix))


def register(registry: Registry) -> None:
    """Register `prefix-cache-scorer`."""
    registry.scorers.add(PrefixCacheScorer.type, PrefixCacheParams, _make)


def _make(params: PrefixCacheParams, context: BuildContext) -> PrefixCacheScorer | BurstScorer:
    source = context.prefix_source(tier=params.tier, producer=params.prefix_match_info_producer_name)
    if isinstance(source, BurstProducer):
        return BurstScorer(
            source.block_size,
            length_weight=params.match_length_weight,
            length_scale_tokens=params.match_length_scale_tokens,
        )
    return PrefixCacheScorer(
        source,
        length_weight=params.match_length_weight,
        length_scale_tokens=params.match_length_scale_tokens,
    )
