"""The cost formula of Dynamo's KV router, for comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ...scorers.core.max_score import MaxScorePicker
from ...scorers.core.model import Candidate, Rating, Ratings, RequestView
from ...scorers.core.profile import Profile

TIER_WEIGHTS = (1.0, 0.75, 0.25)
"""Dynamo's defaults: what a cached block saves on the device, in host memory beyond it, on disk beyond both."""


class DynamoCostScorer:
    """`1 / (1 + cost)` with `cost = max(0, prefill blocks ahead + prompt blocks - credit) + decode blocks`.

    Dynamo picks the lowest cost, so the highest score. It knows the decode blocks of each worker from its own books of
    active requests; here they come from the worker's reported utilization, which counts the same blocks. The formula's
    further term for the number of active requests is left out.
    Source: Dynamo lib/kv-router, selector/default.rs, with prefill load scale 1, decay 0 and temperature 0.

    Args:
        block_size: tokens a block.
        gpu_blocks: blocks of a worker's GPU.
    """

    type = "dynamo-cost"

    def __init__(self, *, block_size: int, gpu_blocks: int) -> None:
        self._block_size, self._gpu_blocks = block_size, gpu_blocks

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the cost in blocks."""
        return [self._rating(request, candidate) for candidate in candidates]

    def _rating(self, request: RequestView, candidate: Candidate) -> Rating:
        prefill = (request.n_tokens + candidate.in_flight.tokens) / self._block_size
        saved = candidate.prefix.credited_blocks(TIER_WEIGHTS) if candidate.prefix is not None else 0.0
        decode = candidate.load.kv_utilization * self._gpu_blocks if candidate.load is not None else 0.0
        cost = max(0.0, prefill - saved) + decode
        return Rating(raw=cost, score=1.0 / (1.0 + cost))


def dynamo_profile(*, block_size: int, gpu_blocks: int) -> Profile:
    """Picks by `DynamoCostScorer` alone."""
    scorer = DynamoCostScorer(block_size=block_size, gpu_blocks=gpu_blocks)
    return Profile([(scorer.type, scorer, 1.0)], MaxScorePicker())
