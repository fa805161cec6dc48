"""`fleet-cost-scorer`: prefers the endpoint where a request costs least, to itself and to those that wait behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.params import BuildContext
from ..core.ratings import Inputs, Parts, Ratings
from ..core.registry import Registry
from .arithmetic import COST_PARTS
from .cost import LatencyCostScorer
from .means import RunningMean
from .operations import fleet_costs
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

    Ties: equal costs score the same, and chance decides among those within the model's resolution of the best, see
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
        """Return one rating per candidate; raw is the cost in milliseconds, with its parts."""
        found = self._parts(request, candidates)
        scores = found[-1]
        return Ratings(
            scores, Inputs(found[-2], parts=Parts(COST_PARTS, found[:-2])), self._resolution(scores)
        )

    def _parts(self, request: RequestView, candidates: Candidates) -> FloatArray:
        """Return `fleet_costs`. Cost: O(endpoints)."""
        params, expected = self._params, self.model.expect(request, candidates)
        typical = self._typical_tokens
        numbers = (
            max(LEAST_TOKENS, typical.value if typical.is_known else 0.0),
            params.price_factor if typical.is_known else 0.0,
            params.max_price,
            params.residency_ms,
            HERE,
            params.scale_ms,
        )
        return fleet_costs(
            expected.ttft_ms, expected.features, expected.costs, expected.accounts, candidates.state, numbers
        )

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
