"""`latency-cost-scorer`: prefers endpoints with an earlier expected first token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.params import BuildContext
from ..core.ratings import Inputs, Ratings
from ..core.registry import Registry
from .groups import FitReport
from .params import LatencyCostParams
from .ttft import TtftCosts


class LatencyCostScorer:
    """Score `1 / (1 + ms / scale_ms)`, where ms is the expected time to first token.

    Ties: equal expected times score the same.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
    """

    type = "latency-cost-scorer"
    max_load_age_s = math.inf

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str]) -> None:
        self._scale_ms, self._costs = params.scale_ms, TtftCosts(params, tiers)

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the expected milliseconds to first token."""
        expected_ms = self.expected_ms(request, candidates)
        return Ratings(1.0 / (1.0 + expected_ms / self._scale_ms), Inputs(expected_ms))

    def expected_ms(self, request: RequestView, candidates: Candidates) -> FloatArray:
        """Return the expected milliseconds to first token by endpoint."""
        return self._costs.expected_ms(request.n_tokens, candidates)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from an observed time; the expected waits are in the decision."""
        self._costs.observe(decision, ttft_s=ttft_s)

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return self._costs.reports()


def register(registry: Registry) -> None:
    """Register `latency-cost-scorer`."""
    registry.scorers.add(LatencyCostScorer.type, LatencyCostParams, _make)


def _make(params: LatencyCostParams, context: BuildContext) -> LatencyCostScorer:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    return LatencyCostScorer(params, context.tiers)
