"""`fleet-cost-scorer`: prefers the endpoint where a request costs least, to itself and to those that wait behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from msgspec import Meta

from ..core.candidates import REQUESTS, TOKENS, Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.params import BuildContext
from ..core.ratings import Inputs, Parts, Ratings
from ..core.registry import Registry
from ..core.slo import Slo, slo_of
from .arithmetic import COST_PARTS
from .cost import LatencyCostScorer, known_first
from .expected import Expected
from .lines import N_FEATURES, OVERDUE, PLACED_S
from .means import RunningMean
from .objectives import RunningObjectives, chance, endangered, tpot_limit
from .open_request import OpenRequest
from .operations import displaced_tokens, fleet_costs
from .params import LatencyCostParams

LEAST_TOKENS = 64.0
"""Least typical work of a request in tokens: below, a queue is counted as shorter than it is, so that prices stay finite."""

HERE = 0.5
"""Part of the price that follows the requests that wait at the endpoint itself; the rest follows the mean of all."""

N_OWN = 4
"""Number of the first parts of a cost, which are the request's own time to first token."""

OBJECTIVE_PARTS = (*COST_PARTS, "missed", "endangered")
"""Parts of a cost of a request with objectives: the last two are its own that may be missed, and those of others."""

LEAST_DISPLACED = 0.25
"""Part of the uncached tokens that count as displacing others while the GPU has room for all: it will have been filled later."""

RESPONSE = 0.01
"""Part of the longer time for the tokens of a response that counts: it decides where first tokens come about as soon."""

SPREAD = 3.0
"""Weight of how unevenly tokens were placed, for prefixes that no endpoint has."""

MAX_SHARED = 64
"""Points at which prompts under way depart from a prompt that count; the first ones are those of most requests."""

NOTHING_SHARED: FloatArray = np.zeros((2, 0))
NOTHING_SHARED.flags.writeable = False

STEP = 0.02
"""Step of the running mean of the work of a request per pick: it follows about fifty requests."""


class FleetCostParams(LatencyCostParams, frozen=True):
    """Parameters of `fleet-cost-scorer`; its costs are the priors of the fit."""

    price_factor: Annotated[float, Meta(ge=0)] = 1.0
    """Factor of the price of work; 0 makes each request look after itself alone."""
    max_price: Annotated[float, Meta(ge=0)] = 30.0
    """Highest price of a millisecond of work by the requests that wait anywhere, in milliseconds of waiting."""
    residency_factor: Annotated[float, Meta(ge=0)] = 1.5
    """Time that all blocks of a full endpoint cost others, and each request that waits again there, as a part of the time they are held."""
    displacement_factor: Annotated[float, Meta(ge=0)] = 2.4
    """Part of the time to compute displaced tokens again that displacing them costs, if no slower tier has them."""
    miss_ms: Annotated[float, Meta(ge=0)] = 30_000.0
    """Milliseconds that a missed objective costs, of the request or of one beside it; 0: objectives are not read."""


class FleetCostScorer(LatencyCostScorer):
    """Score `1 / (1 + ms / scale_ms)`, where ms is what the choice costs all requests together.

    `ms = time to first token + price * work + memory - copy + response`. Work is the time to compute the uncached part of the prompt. Each
    millisecond of it delays the requests that come behind. About as many come behind as wait now (Little's law): those that
    wait at this endpoint, if what comes next stays there, and the mean of all endpoints, if it may go anywhere. The price is
    half of each, so an idle endpoint computes a prefix again sooner than a busy one. The second half is limited, so that it does so
    however many wait elsewhere.

    The blocks that a request takes until its response ends make others wait, the more the fuller the endpoint is, and each of the
    requests that wait there again because the engine took their blocks back. The uncached tokens stay, and displace as many. What is
    displaced costs the time to compute it again, less the part that slower tiers give back. So
    `memory = residency_factor * (utilization + again) * taken * residence + lost * time(displaced)`, with the mean time per token
    of all endpoints. `taken` is the part of the endpoint's blocks that the prompt needs beside those that requests there hold of it
    anyway, and `residence` the time for which a request usually holds its blocks. `lost` is `displacement_factor` times the part
    of the tokens missing on the GPU that recent requests had to compute, and not to load. Displaced are the uncached tokens, more
    where more than the mean was placed lately, and fewer where less was: for tokens that no endpoint has, by `SPREAD` times the
    difference as a part of the mean, at most by all of them. As far as the GPU has blocks that hold nothing yet, only
    `LEAST_DISPLACED` of them count.

    A wait for blocks counts less the more other endpoints lack blocks too, and not at all if all do: elsewhere the request would
    make others wait. It counts for the part `1 - (lacking others / others)**2`.

    A copy of a prompt that many requests share saves these what a batch costs them that is larger than there, see `copy_savings`.

    In a mixed fleet, `RESPONSE` times the longer time for all tokens of the response counts, beyond that of the quickest endpoint and a
    quarter: it decides between those where first tokens come about as soon.

    A request with objectives costs what it does to others, and with the chance to miss one of its own also `miss_ms` and its time
    to first token. What it does to others is then also the expected number of objectives for the time per output token of
    requests under way there that are missed because of it, times `miss_ms`.

    Ties: equal costs score the same. Chance decides among those within the model's resolution of the best, see
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
        self._loaded_tokens = RunningMean(STEP, start=None)
        """Running mean of the tokens that a request loads from slower tiers."""
        self.model.means.include("typical", self._typical_tokens)
        self.model.means.include("loaded", self._loaded_tokens)
        self._running = RunningObjectives()
        self.model.accounts.on_forgotten = self._forgotten

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the cost in milliseconds, with its parts."""
        slo = slo_of(request.headers) if self._params.miss_ms else None
        expected = self.model.expect(request, candidates)
        found = self._parts(expected)
        names: tuple[str, ...] = COST_PARTS
        if slo is not None:
            found, names = self._with_objectives(found, expected, slo), OBJECTIVE_PARTS
        scores = known_first(found[-1], candidates)
        return Ratings(scores, Inputs(found[-2], parts=Parts(names, found[:-2])), self._resolution(scores))

    def _parts(self, expected: Expected) -> FloatArray:
        """Return `fleet_costs`. Cost: O(endpoints)."""
        params, typical = self._params, self._typical_tokens
        numbers = (
            float(expected.request.n_tokens),
            max(LEAST_TOKENS, typical.value if typical.is_known else 0.0),
            params.price_factor if typical.is_known else 0.0,
            params.max_price,
            params.residency_factor * expected.residence_ms,
            self._lost(),
            HERE,
            params.scale_ms,
            RESPONSE * self.model.lengths.mean(expected.request.model),
        )
        displaced = displaced_tokens(
            expected.features,
            expected.accounts,
            expected.candidates.state,
            (expected.request.now, PLACED_S, SPREAD, LEAST_DISPLACED),
        )
        return fleet_costs(
            expected.ttft_ms,
            expected.features,
            expected.costs,
            expected.accounts,
            _waiting_state(expected),
            displaced,
            self.model.token_ms(expected),
            self._sharing(expected),
            numbers,
        )

    def _sharing(self, expected: Expected) -> FloatArray:
        """Return how many requests share leading tokens of a prompt, see `copy_savings`; those of other processes are as alike as own ones."""
        if not expected.sharing:
            return NOTHING_SHARED
        n_sent, n_own = float(np.add.reduce(expected.candidates.state[REQUESTS])), len(self.model.accounts)
        n_each, shared = max(1.0, n_sent / max(1, n_own)), expected.sharing[:MAX_SHARED]
        return np.array([[n_each * each.n_requests, float(each.n_tokens)] for each in shared]).T

    def _lost(self) -> float:
        """Return what displacing a token costs, as a part of the time to compute it; 0 before the first request."""
        computed, loaded = self._typical_tokens.value, self._loaded_tokens.value
        return self._params.displacement_factor * computed / max(1.0, computed + loaded)

    def _with_objectives(self, parts: FloatArray, expected: Expected, slo: Slo) -> FloatArray:
        """Return the parts in the order of `OBJECTIVE_PARTS`, the cost and its score, of a request with objectives."""
        params, model = self._params, self.model
        misses = 1.0 - chance(model, expected, slo)
        own, (others, memory, copy, response) = parts[:N_OWN], parts[N_OWN : len(COST_PARTS)]
        if slo.ttft_ms is not None:
            own = own * misses  # a first token within the objective need not come sooner
        spent = own[COST_PARTS.index("prefill")] + others + memory  # a copy saves no more than it costs
        found = [
            *own,
            others,
            memory,
            np.maximum(copy, -spent),
            response,
            params.miss_ms * misses,
            params.miss_ms * endangered(model, expected, self._running),
        ]
        cost_ms = np.add.reduce(found, axis=0)
        return np.stack([*found, cost_ms, params.scale_ms / (params.scale_ms + cost_ms)])

    def picked(self, request: RequestView, decision: Decision) -> None:
        """Follow a request that was sent to an endpoint, and learn the typical work of a request."""
        super().picked(request, decision)
        opened = self.model.accounts.find(decision)
        if opened is None:
            return
        if request.n_tokens:
            opened.lessons += (
                ("typical", float(decision.best.computed_tokens(request))),
                ("loaded", sum(opened.features[N_FEATURES:])),
            )
        limit = tpot_limit(decision)
        if limit is not None:
            self._running.begun(decision.picked[0], limit)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        """Learn from the time per output token, and forget the request with its objective."""
        request = self.model.accounts.find(decision)
        if request is not None:
            self._forgotten(request)
        super().ended(decision, tpot_s=tpot_s)

    def _forgotten(self, request: OpenRequest) -> None:
        """Forget the objective of a request that was counted."""
        limit = tpot_limit(request.decision)
        if limit is not None:
            self._running.ended(request.decision.picked[0], limit)


def _waiting_state(expected: Expected) -> FloatArray:
    """Return the state of the candidates without the tokens of responses that are taken to have begun."""
    state, overdue = expected.candidates.state, expected.accounts[OVERDUE]
    if not np.count_nonzero(overdue):
        return state  # as nearly always
    state = state.copy()
    state[TOKENS] = np.maximum(0.0, state[TOKENS] - overdue)
    return state


def register(registry: Registry) -> None:
    """Register `fleet-cost-scorer`."""
    registry.scorers.add(FleetCostScorer.type, FleetCostParams, _make)


def _make(params: FleetCostParams, context: BuildContext) -> FleetCostScorer:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    return FleetCostScorer(params, context.tiers)
