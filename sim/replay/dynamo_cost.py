"""The cost formula of Dynamo's KV router, for comparison."""

from __future__ import annotations

from collections.abc import Sequence

from ...scorers.core.max_score import MaxScorePicker
from ...scorers.core.model import Candidate, Rating, Ratings, RequestView
from ...scorers.core.profile import Profile

TIER_WEIGHTS = (1.0, 0.75, 0.25)
"""Dynamo's default credits per cached block: on the device, else in host memory, else on disk."""


class DynamoCostScorer:
    """Scorer with `1 / (1 + cost)`, where `cost = max(0, prefill blocks ahead + prompt blocks - credit) + decode blocks`.

    Dynamo picks the lowest cost, so the highest score. It counts the decode blocks of each worker in its own accounts of
    active requests. Here they come from the worker's reported utilization, which counts the same blocks. The term for the
    number of active requests is omitted.
    Source: Dynamo lib/kv-router, selector/default.rs, with prefill load scale 1, decay 0 and temperature 0.

    Args:
        block_size: tokens per block.
        gpu_blocks: blocks of a worker's GPU.
    """

    type = "dynamo-cost"

    def __init__(self, *, block_size: int, gpu_blocks: int) -> None:
        self._block_size, self._gpu_blocks = block_size, gpu_blocks

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """Rate each candidate; `raw` is the cost in blocks."""
        return [self._rating(request, candidate) for candidate in candidates]

    def _rating(self, request: RequestView, candidate: Candidate) -> Rating:
        prefill = (request.n_tokens + candidate.in_flight.tokens) / self._block_size
        saved = candidate.prefix.credited_blocks(TIER_WEIGHTS) if candidate.prefix is not None else 0.0
        decode = candidate.load.kv_utilization * self._gpu_blocks if candidate.load is not None else 0.0
        cost = max(0.0, prefill - saved) + decode
        return Rating(raw=cost, score=1.0 / (1.0 + cost))


def dynamo_profile(*, block_size: int, gpu_blocks: int) -> Profile:
    """Make a profile with `DynamoCostScorer` alone."""
    scorer = DynamoCostScorer(block_size=block_size, gpu_blocks=gpu_blocks)
    return Profile([(scorer.type, scorer, 1.0)], MaxScorePicker())
