"""`fleet-cost-scorer`: prefers the endpoint where a request costs least, to itself and to those that wait behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

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

LEAST_TOKENS = 64.0
"""Least typical work of a request in tokens: below, a queue is counted as shorter than it is, so that prices stay finite."""

STEP = 0.02
"""Step of running means per pick: they follow about fifty requests."""

MAX_GAP_S = 10.0
"""Longest time between two picks that counts; a pause says nothing of how long requests take."""

MAX_RESIDENCE_MS = 60_000.0
"""Longest time for which a request is taken to hold its blocks."""


class FleetCostParams(LatencyCostParams, frozen=True):
    """Parameters of `fleet-cost-scorer`; its costs are the priors of the fit."""

    memory_share: Annotated[float, Meta(ge=0)] = 0.5
    """Part of the time for which requests hold their blocks until blocks as large as the GPU memory are free; 0 switches the term off."""
    price_factor: Annotated[float, Meta(ge=0)] = 1.0
    """Factor of the price of work; 0 makes each request look after itself alone."""
    max_price: Annotated[float, Meta(ge=0)] = 30.0
    """Highest price of a millisecond of work, in milliseconds of waiting."""


class FleetCostScorer:
    """Score `1 / (1 + ms / scale_ms)`, where ms is what the choice costs all requests together.

    `ms = time to first token + wait for memory + price * work`. Work is the time to compute the uncached part of the
    prompt. Each millisecond of it delays the requests that come behind. About as many come behind as wait now (Little's
    law), so the price is the mean number of waiting requests per endpoint. The wait for memory is the missing part of the
    GPU blocks, times a part of the time for which requests hold theirs.

    Ties: equal costs score the same.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
    """

    type = "fleet-cost-scorer"

    def __init__(self, params: FleetCostParams, tiers: Sequence[str]) -> None:
        self._params, self._costs = params, TtftCosts(params, tiers)
        self._typical_tokens: float | None = None
        """Running mean of the uncached tokens of a request; None before the first pick."""
        self._picked_at: float | None = None
        """Monotonic seconds of the last pick; None before the first."""
        self._gap_s: float | None = None
        """Running mean of the seconds between picks; None before the second."""

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the cost in milliseconds."""
        cost_ms = self.cost_ms(request, candidates)
        return Ratings(1.0 / (1.0 + cost_ms / self._params.scale_ms), Inputs(cost_ms))

    def cost_ms(self, request: RequestView, candidates: Candidates) -> FloatArray:
        """Return the milliseconds that each endpoint costs all requests together. Cost: some 20 operations on columns."""
        cost, work_ms = self._costs.with_work_ms(request.n_tokens, candidates)
        price = self.price(candidates)
        if price:
            cost += price * work_ms
        residence_ms = self._params.memory_share * self.residence_ms(candidates)
        if residence_ms:
            cost += residence_ms * missing_memory(candidates)
        return cost

    def residence_ms(self, candidates: Candidates) -> float:
        """Return the time for which a request holds its blocks: requests that run, by requests per millisecond."""
        if self._gap_s is None:
            return 0.0
        n_running = float(np.add.reduce(candidates.running))
        if n_running != n_running:  # noqa: PLR0124 - NaN: some are unknown
            n_running = float(np.nansum(candidates.running))
        return min(n_running * self._gap_s * 1000.0, MAX_RESIDENCE_MS)

    def price(self, candidates: Candidates) -> float:
        """Return the price of a millisecond of work, in milliseconds of waiting of others."""
        if self._typical_tokens is None:
            return 0.0
        n_tokens = float(np.add.reduce(candidates.in_flight_tokens)) / len(candidates)
        n_waiting = n_tokens / max(self._typical_tokens, LEAST_TOKENS)
        return min(self._params.price_factor * n_waiting, self._params.max_price)

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Learn the typical work of a request, and how often they come."""
        n_tokens = float(decision.best.uncached_tokens(request))
        self._typical_tokens = _followed(self._typical_tokens, n_tokens)
        if self._picked_at is not None:
            self._gap_s = _followed(self._gap_s, min(request.now - self._picked_at, MAX_GAP_S))
        self._picked_at = request.now

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from an observed time; the expected waits are in the decision."""
        self._costs.observe(decision, ttft_s=ttft_s)

    def reports(self) -> list[FitReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return self._costs.reports()


def _followed(mean: float | None, value: float) -> float:
    return value if mean is None else mean + STEP * (value - mean)


def missing_memory(candidates: Candidates) -> FloatArray:
    """Return the part of the GPU blocks that must become free before one more request begins, 0 if that is unknown.

    A request takes as many blocks as a running one holds in the mean, and so does each that waits.
    """
    used, running = candidates.kv_utilization, candidates.running
    wanted = np.fmax(candidates.waiting, candidates.in_flight_requests - running)
    wanted += 1.0
    wanted /= np.fmax(1.0, running)
    wanted += 1.0
    wanted *= used
    wanted -= 1.0
    return np.fmax(0.0, wanted, out=wanted)  # NaN is unknown, and fmax takes the other


def register(registry: Registry) -> None:
    """Register `fleet-cost-scorer`."""
    registry.scorers.add(FleetCostScorer.type, FleetCostParams, _make)


def _make(params: FleetCostParams, context: BuildContext) -> FleetCostScorer:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    return FleetCostScorer(params, context.tiers)
