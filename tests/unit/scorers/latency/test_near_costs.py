"""Costs that the model cannot tell apart, and observations that say nothing of costs."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.latency.cost_model import MOST_NEAR, CostModel
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from kvatlas.scorers.latency.lines import LOG_PACE, N_AHEAD, N_LINES, WORK
from kvatlas.scorers.latency.params import LatencyCostParams
from support.candidates import endpoint
from support.rating import decide, routed_to

PARAMS = FleetCostParams(overhead_ms=10.0, prefill_tokens_per_second=1000.0)


def picks(tokens_ahead: int, *, fit: bool = True) -> set[str]:
    """Return the endpoints that chance picks between an idle one and one with as many tokens in flight, of a prompt of 1,000 tokens."""
    scorer = FleetCostScorer(msgspec.structs.replace(PARAMS, fit=fit, price_factor=0.0), ("gpu",))
    profile = Profile([("cost", scorer, 1.0)], MaxScorePicker())
    request = RequestView(model="m", now=0.0, n_tokens=1000)
    fleet = [endpoint("idle"), endpoint("busy", in_flight=(1, tokens_ahead))]
    rng = Random(1).random
    decisions = [decide(profile, request, fleet, rng=rng) for _ in range(50)]
    found = {name for each in decisions for name in each.picked}
    for each in decisions:
        assert (set(each.tied), each.tie) == (found, len(found) > 1)
    return found


def test_chance_decides_between_costs_that_the_model_cannot_tell_apart() -> None:
    assert picks(10) == {"idle", "busy"}
    assert picks(100) == {"idle"}
    assert picks(10, fit=False) == {"idle"}, "configured costs are exact"


def model() -> CostModel:
    return CostModel(LatencyCostParams(overhead_ms=10.0, prefill_tokens_per_second=1000.0), ("gpu",))


def answer(costs: CostModel, *, after_s: float, added_at: float | None = None) -> None:
    """Have a request answered that is sent at 5 s; a sibling's request for the same endpoint becomes known at `added_at`."""
    request = RequestView(model="m", now=5.0, n_tokens=1000)
    costs.expect(request, Candidates.of([endpoint("a")]))
    decision = msgspec.structs.replace(routed_to(endpoint("a"), n_tokens=1000), at=5.0)
    costs.picked(request, decision)
    if added_at is not None:
        numbers = [0.0] * N_LINES
        numbers[WORK], numbers[N_AHEAD] = 1000.0, 1.0
        costs.accounts.shared.take("x", "a", numbers, now=added_at)
    costs.answered(decision, ttft_s=after_s)
    costs.ended(decision, tpot_s=None)


def pace(costs: CostModel) -> float:
    return float(costs.accounts.columns(Candidates.of([endpoint("a")]))[LOG_PACE, 0])


def test_costs_are_known_as_well_as_times_were_expected() -> None:
    costs = model()
    assert costs.resolution == MOST_NEAR

    answer(costs, after_s=1.0243)
    assert costs.resolution == pytest.approx(0.0, abs=0.001)
    for _ in range(60):
        answer(costs, after_s=2.0)
    assert costs.resolution == MOST_NEAR


@pytest.mark.parametrize(
    ("added_at", "learns"),
    [
        pytest.param(None, True, id="alone"),
        pytest.param(5.01, False, id="sibling_at_the_same_time"),
        pytest.param(5.5, True, id="sibling_that_knew_of_it"),
    ],
)
def test_nothing_is_learned_where_a_sibling_sent_a_request_at_the_same_time(
    added_at: float | None, learns: bool
) -> None:
    costs = model()
    costs.accounts.shared.on_change = lambda: None

    answer(costs, after_s=2.0, added_at=added_at)

    assert (pace(costs) > 0.0) is learns
    assert bool(costs.ttft.fits.reports()) is learns
