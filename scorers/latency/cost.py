"""`latency-cost-scorer`: prefers endpoints with an earlier expected first token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..core.candidates import UPDATED_AT, Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import PREFILL_SPEED, RequestView
from ..core.params import BuildContext
from ..core.ratings import Inputs, Ratings
from ..core.registry import Registry
from ..core.shared import SharedSums
from .cost_model import CostModel
from .groups import FitReport
from .params import LatencyCostParams

COMPUTED = ("queue", "prefill", "attention")
"""Costs that follow the speed at which an endpoint computes prompts; a group starts at the speed that an engine publishes."""


class LatencyCostScorer:
    """Score `1 / (1 + ms / scale_ms)`, where ms is the expected time to first token.

    An endpoint whose load is unknown scores 0 beside others whose load is known, see `known_first`.

    Ties: equal expected times score the same, and chance decides among those within the model's resolution of the best, see
    `CostModel.resolution`.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.

    Attributes:
        model: predicts and learns.
    """

    type = "latency-cost-scorer"
    max_load_age_s = 0.25  # the batch and the free blocks change with every request that begins or ends

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str]) -> None:
        self._scale_ms, self._learns = params.scale_ms, params.fit
        self._tokens_per_second = params.prefill_tokens_per_second
        self.model = CostModel(params, tiers)

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the expected milliseconds to first token."""
        expected_ms = self.expected_ms(request, candidates)
        scores = known_first(self._scale_ms / (self._scale_ms + expected_ms), candidates)
        return Ratings(scores, Inputs(expected_ms), self._resolution(scores))

    def _resolution(self, scores: FloatArray) -> float:
        """Return the difference of scores that corresponds to the resolution of costs at the best one. Cost: 1 us."""
        best = float(np.maximum.reduce(scores, initial=0.0))
        part = (1.0 - best) * self.model.resolution
        return best * part / (1.0 + part)

    def expected_ms(self, request: RequestView, candidates: Candidates) -> FloatArray:
        """Return the expected milliseconds to first token by endpoint."""
        return self.model.expect(request, candidates).ttft_ms

    def shared_sums(self) -> Mapping[str, SharedSums]:
        """See `SharesSums`."""
        return self.model.shared_sums()

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Follow a request that was sent to an endpoint."""
        speed = decision.best.attributes.get(PREFILL_SPEED)
        if speed and self._learns:
            fits, factor = self.model.ttft.fits, self._tokens_per_second / speed
            fits.start_at(fits.group_of(decision.best), dict.fromkeys(COMPUTED, factor))
        self.model.picked(request, decision)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from an observed time; what was expected is kept since the pick."""
        self.model.answered(decision, ttft_s=ttft_s)

    def generated(self, decision: Decision, *, n_tokens: int) -> None:
        """Learn from the length of a response."""
        self.model.generated(decision, n_tokens=n_tokens)

    def refused(self, decision: Decision) -> None:
        """Take back the work of a request whose prompt was not computed."""
        self.model.refused(decision)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Learn from the time per output token, and forget the request."""
        self.model.ended(decision, tpot_s=tpot_s)

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return self.model.reports()


def known_first(scores: FloatArray, candidates: Candidates) -> FloatArray:
    """Return the scores, with 0 for endpoints whose load is unknown beside endpoints whose load is known. Cost: 2 us.

    A server that is down fails every request at once, so that nothing ever waits there, and its requests take no memory: it
    would cost less than any other.
    """
    updated_at = candidates.state[UPDATED_AT]
    if not math.isnan(np.add.reduce(updated_at)):
        return scores  # as nearly always
    is_unknown = np.isnan(updated_at)
    return scores if is_unknown.all() else np.where(is_unknown, 0.0, scores)


def register(registry: Registry) -> None:
    """Register `latency-cost-scorer`."""
    registry.scorers.add(LatencyCostScorer.type, LatencyCostParams, _make)


def _make(params: LatencyCostParams, context: BuildContext) -> LatencyCostScorer:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    return LatencyCostScorer(params, context.tiers)
