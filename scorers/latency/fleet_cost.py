"""`fleet-cost-scorer`: prefers the endpoint where a request costs least, to itself and to those that wait behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from ..core.candidates import Candidates
from ..core.columns import FloatArray, unknown_as_zero
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.params import BuildContext
from ..core.ratings import Inputs, Ratings
from ..core.registry import Registry
from .cost import LatencyCostScorer
from .cost_model import Expected
from .features import ATTENTION, PREFILL
from .lines import N_AHEAD
from .means import RunningMean
from .params import LatencyCostParams

LEAST_TOKENS = 64.0
"""Least typical work of a request in tokens: below, a queue is counted as shorter than it is, so that prices stay finite."""

HERE = 0.5
"""Part of the price that follows the requests that wait at the endpoint itself; the rest follows the mean of all."""

STEP = 0.02
"""Step of the running mean of the work of a request per pick: it follows about fifty requests."""


class FleetCostParams(LatencyCostParams, frozen=True):
    """Parameters of `fleet-cost-scorer`; its costs are the priors of the fit."""

    price_factor: Annotated[float, Meta(ge=0)] = 1.0
    """Factor of the price of work; 0 makes each request look after itself alone."""
    max_price: Annotated[float, Meta(ge=0)] = 30.0
    """Highest price of a millisecond of work, in milliseconds of waiting."""
    residency_ms: Annotated[float, Meta(ge=0)] = 600.0
    """Milliseconds that blocks on a full endpoint cost others; on one that is half full they cost half as much."""


class FleetCostScorer(LatencyCostScorer):
    """Score `1 / (1 + ms / scale_ms)`, where ms is what the choice costs all requests together.

    `ms = time to first token + price * work + residency_ms * utilization`. Work is the time to compute the uncached part of
    the prompt. Each millisecond of it delays the requests that come behind. About as many come behind as wait now (Little's
    law): those that wait at this endpoint, if what comes next stays there, and the mean of all endpoints, if it may go
    anywhere. The price is half of each, so an idle endpoint computes a prefix again sooner than a busy one. The blocks that
    a request holds until its response ends displace cached prefixes, and make others wait, the more the fuller the endpoint
    is.

    Ties: equal costs score the same, and chance decides among those that the model cannot tell from the best, see
    `CostModel.resolution`.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
    """

    type = "fleet-cost-scorer"

    def __init__(self, params: FleetCostParams, tiers: Sequence[str]) -> None:
        super().__init__(params, tiers)
        self._params = params
        self._typical_tokens = RunningMean(STEP, start=None)
        """Running mean of the uncached tokens of a request."""
        self.model.means.include("typical", self._typical_tokens)

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the cost in milliseconds."""
        cost_ms = self.cost_ms(request, candidates)
        scores = 1.0 / (1.0 + cost_ms / self._params.scale_ms)
        return Ratings(scores, Inputs(cost_ms), self._resolution(scores))

    def cost_ms(self, request: RequestView, candidates: Candidates) -> FloatArray:
        """Return the milliseconds that each endpoint costs all requests together. Cost: some 20 operations on columns."""
        expected = self.model.expect(request, candidates)
        cost = expected.ttft_ms.copy()
        if self._typical_tokens.is_known:
            costs, features = expected.costs, expected.features
            work_ms = costs[PREFILL] * features[PREFILL] + costs[ATTENTION] * features[ATTENTION]
            cost += self._prices(expected, self._typical_tokens.value) * work_ms
        if self._params.residency_ms:
            cost += self._params.residency_ms * unknown_as_zero(candidates.kv_utilization)
        return cost

    def _prices(self, expected: Expected, typical_tokens: float) -> FloatArray:
        """Return the price of a millisecond of work on each endpoint, in milliseconds of waiting of others."""
        candidates = expected.candidates
        n_tokens = float(np.add.reduce(candidates.in_flight_tokens)) / max(1, len(candidates))
        n_anywhere = n_tokens / max(typical_tokens, LEAST_TOKENS)
        n_here = np.fmax(expected.accounts[N_AHEAD], candidates.waiting)  # NaN is unknown
        n_waiting = (1.0 - HERE) * n_anywhere + HERE * n_here
        prices: FloatArray = np.minimum(self._params.price_factor * n_waiting, self._params.max_price)
        return prices

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Follow a request that was sent to an endpoint, and learn the typical work of a request."""
        super().picked(request, decision)
        self.model.means.add("typical", float(decision.best.uncached_tokens(request)))


def register(registry: Registry) -> None:
    """Register `fleet-cost-scorer`."""
    registry.scorers.add(FleetCostScorer.type, FleetCostParams, _make)


def _make(params: FleetCostParams, context: BuildContext) -> FleetCostScorer:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    return FleetCostScorer(params, context.tiers)
