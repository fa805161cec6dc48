"""The cost formula of Dynamo's KV router, for comparison."""

from __future__ import annotations

import numpy as np

from ...scorers.core.candidates import Candidates
from ...scorers.core.columns import unknown_as_zero
from ...scorers.core.max_score import MaxScorePicker
from ...scorers.core.model import RequestView
from ...scorers.core.prefix_source import TierCredits
from ...scorers.core.profile import Profile
from ...scorers.core.ratings import Inputs, Ratings

_CREDITS = TierCredits((1.0, 0.75, 0.25))
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

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Rate each candidate; `raw` is the cost in blocks."""
        prefill = (request.n_tokens + candidates.in_flight_tokens) / self._block_size
        saved = _CREDITS.blocks(candidates.prefix) if candidates.prefix is not None else 0.0
        decode = unknown_as_zero(candidates.kv_utilization * self._gpu_blocks)
        cost = np.maximum(0.0, prefill - saved) + decode
        return Ratings(1.0 / (1.0 + cost), Inputs(cost))


def dynamo_profile(*, block_size: int, gpu_blocks: int) -> Profile:
    """Make a profile with `DynamoCostScorer` alone."""
    scorer = DynamoCostScorer(block_size=block_size, gpu_blocks=gpu_blocks)
    return Profile([(scorer.type, scorer, 1.0)], MaxScorePicker())
