"""`burst-prefix-cache-producer`: requests that arrive together with equal prompts go to one endpoint."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from .core.bursts import BurstRules
from .core.candidates import Candidates
from .core.columns import FloatArray
from .core.model import RequestView
from .core.params import PluginParams
from .core.prefix_source import BurstProducer
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .errors import ParametersError

PRODUCER = "burst-prefix-cache-producer"

UNLIMITED = -1

DEFAULT_MAX_BLOCKS = 2048
"""Leading blocks by which prompts are compared. Source: the reference's default."""

Size = Annotated[int, Meta(ge=1)]
Limit = Annotated[int, Meta(ge=0)]
SizeOrUnlimited = Annotated[int, Meta(ge=UNLIMITED)]


class BurstParams(PluginParams, frozen=True):
    """Parameters of `burst-prefix-cache-producer`."""

    window_duration_ms: Annotated[int, Meta(ge=1, le=60_000)] = 100
    """Time for which requests are collected; each waits for its end."""
    max_per_replica: SizeOrUnlimited = UNLIMITED
    """Requests with equal prompts on one endpoint; -1 for no limit."""
    block_size_tokens: Size = 64
    """Tokens per block by which prompts are compared."""
    max_prefix_tokens_to_match: Limit = 0
    """Leading tokens by which prompts are compared; 0 for 2048 blocks."""
    min_colocate_blocks: Limit = 0
    """Leading blocks that different prompts must share to go together; 0: only equal prompts do."""
    max_batch_size: SizeOrUnlimited = 1000
    """Requests that are collected at one time, further ones do not wait; -1 for no limit."""
    balance_by: Literal["requests", "tokens"] = "requests"
    """What is spread evenly over the endpoints."""

    def producer(self) -> BurstProducer:
        """Return the producer that the parameters describe."""
        tokens, size = self.max_prefix_tokens_to_match, self.block_size_tokens
        return BurstProducer(
            window_s=self.window_duration_ms / 1000,
            block_size=size,
            max_blocks=tokens // size if tokens else DEFAULT_MAX_BLOCKS,
            max_requests=None if self.max_batch_size == UNLIMITED else self.max_batch_size,
            rules=BurstRules(
                None if self.max_per_replica == UNLIMITED else self.max_per_replica,
                self.min_colocate_blocks,
                by_tokens=self.balance_by == "tokens",
            ),
        )


class BurstScorer:
    """`prefix-cache-scorer` of a burst producer: the assigned endpoint counts as holding the whole prompt, no other anything.

    Ties: all endpoints but the assigned one score 0; all do for a request that was assigned to none.

    Args:
        block_size: tokens per block.
        length_weight: as in `PrefixCacheScorer`.
        length_scale_tokens: as in `PrefixCacheScorer`.
    """

    type = "prefix-cache-scorer"
    max_load_age_s = math.inf

    def __init__(self, block_size: int, *, length_weight: float, length_scale_tokens: int) -> None:
        self._block_size = block_size
        self._length_weight, self._length_scale = length_weight, length_scale_tokens

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the number of blocks."""
        scores: FloatArray = np.zeros(len(candidates))
        blocks = scores.copy()
        place = request.burst
        row = candidates.row(place.endpoint) if place is not None else None
        if place is not None and row is not None:
            length = min(1.0, place.n_blocks * self._block_size / self._length_scale)
            scores[row] = self._length_weight * length * length + 1 - self._length_weight
            blocks[row] = place.n_blocks
        return Ratings(scores, Inputs(blocks))


def register(registry: Registry) -> None:
    """Register `burst-prefix-cache-producer`."""
    registry.producers.add(PRODUCER, BurstParams, lambda params, _: _checked(params))


def _checked(params: BurstParams) -> BurstProducer:
    for name, value in (("maxPerReplica", params.max_per_replica), ("maxBatchSize", params.max_batch_size)):
        if value == 0:
            raise ParametersError("found 0, expected -1 or a whole number of at least 1", name)
    return params.producer()
