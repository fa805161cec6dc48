"""`fleet-cost-scorer`: what a choice costs the request itself, and those that wait behind it."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer, missing_memory
from support.built import built
from support.candidates import TIERS, endpoint, held, load
from support.rating import rated, routed_to

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
PARAMS = FleetCostParams(
    overhead_ms=10.0,
    prefill_tokens_per_second=1000.0,
    load_tokens_per_second={"cpu": 10_000.0, "storage": 2_000.0},
    memory_share=0.5,
    scale_ms=100.0,
    fit=False,
)


def make(*, picks: int = 0, params: FleetCostParams = PARAMS) -> FleetCostScorer:
    """Return a scorer that saw requests of 160 uncached tokens each, two per second."""
    scorer = FleetCostScorer(params, TIERS)
    for number in range(picks):
        pick(scorer, endpoint(), now=number / 2)
    return scorer


def pick(scorer: FleetCostScorer, picked: Candidate, *, now: float) -> None:
    request = msgspec.structs.replace(REQUEST, now=now)
    scorer.picked(request, routed_to(picked, n_tokens=REQUEST.n_tokens))


def costs(scorer: FleetCostScorer, *candidates: Candidate) -> list[float]:
    return [each.raw or 0.0 for each in rated(scorer, REQUEST, candidates)]


@pytest.mark.parametrize(
    ("candidate", "ms"),
    [
        pytest.param(endpoint(), 10 + 160, id="cold"),
        pytest.param(endpoint(prefix=held(gpu=10)), 10, id="on_gpu"),
        pytest.param(endpoint(prefix=held(cpu=10)), 10 + 16, id="in_cpu_memory"),
    ],
)
def test_cost_of_an_idle_fleet_is_the_own_time(candidate: Candidate, ms: float) -> None:
    assert costs(make(), candidate) == [pytest.approx(ms)]


@pytest.mark.parametrize(
    ("candidate", "ms"),
    [
        pytest.param(endpoint(of=load(running=4, kv=0.5)), 0, id="room_for_more"),
        pytest.param(endpoint(of=load(running=4, kv=1.0)), 250, id="full"),
        pytest.param(endpoint(of=load(running=4, waiting=2, kv=1.0)), 750, id="others_wait"),
        pytest.param(endpoint(of=load(running=4, kv=1.0), in_flight=(6, 0)), 750, id="others_were_sent"),
        pytest.param(endpoint(of=load(kv=1.0)), 0, id="nobody_will_give_up_blocks"),
    ],
)
def test_missing_memory_costs_a_part_of_the_time_that_requests_hold_theirs(
    candidate: Candidate, ms: float
) -> None:
    # four running requests and two picks per second: they stay for two seconds
    (cost,) = costs(make(picks=2), candidate)

    assert cost == pytest.approx(10 + 160 + ms)


def test_pause_between_picks_counts_for_ten_seconds() -> None:
    scorer = make(picks=1)
    pick(scorer, endpoint(), now=1e6)

    (cost,) = costs(scorer, endpoint(of=load(running=4, kv=1.0)))

    # 40 seconds, of which half for a quarter of the memory
    assert cost == pytest.approx(10 + 160 + 5000)


def test_work_costs_more_the_more_requests_wait() -> None:
    busy, idle = endpoint("busy", in_flight=(2, 640)), endpoint("idle")

    first, second = costs(make(picks=1), busy, idle)

    # 640 tokens ahead on two endpoints are two requests of 160 each
    assert (first, second) == (pytest.approx(10 + 640 + 3 * 160), pytest.approx(10 + 3 * 160))


def test_waits_for_the_holder_instead_of_computing_again_when_all_are_busy() -> None:
    holder = endpoint("holder", prefix=held(gpu=10), in_flight=(5, 600))
    others = [endpoint(f"e{n}", in_flight=(4, 400)) for n in range(3)]
    alone, together = make(), make(picks=1)

    assert min(costs(alone, holder, *others)) < costs(alone, holder, *others)[0]
    assert min(costs(together, holder, *others)) == costs(together, holder, *others)[0]


def test_price_is_limited() -> None:
    busy = endpoint(in_flight=(2, 10**9))

    (cost,) = costs(make(picks=1), busy)

    assert cost == pytest.approx(10 + 10**9 + 31 * 160)


def test_price_factor_0_is_the_own_time() -> None:
    params = FleetCostParams(prefill_tokens_per_second=1000.0, overhead_ms=10.0, price_factor=0.0)

    assert costs(make(picks=1, params=params), endpoint(in_flight=(1, 320))) == [pytest.approx(490)]


def test_price_follows_the_work_of_requests() -> None:
    scorer = make(picks=1)
    before = costs(scorer, endpoint(in_flight=(2, 640)))[0]
    for number in range(500):
        pick(scorer, endpoint(prefix=held(gpu=5)), now=float(number))

    assert costs(scorer, endpoint(in_flight=(2, 640)))[0] == pytest.approx(before + 4 * 160, rel=0.01)


def test_unknown_load_costs_no_memory() -> None:
    assert missing_memory(Candidates.of([endpoint(), endpoint(in_flight=(3, 0))])).tolist() == [0.0, 0.0]


def test_unknown_tier_is_refused() -> None:
    with pytest.raises(ParametersError, match="found 'disk', expected a configured tier"):
        built(
            builtin_registry().scorers,
            "fleet-cost-scorer",
            {"loadTokensPerSecond": {"disk": 5}},
            BuildContext(tiers=TIERS),
        )


TOKENS = st.integers(0, 10**7)
BLOCKS = st.integers(0, 10)
BEFORE = st.integers(0, 3)


@given(TOKENS, st.integers(1, 10**6), BLOCKS, BEFORE)
def test_more_ahead_is_never_cheaper(ahead: int, more: int, gpu: int, picks: int) -> None:
    fewer, other = endpoint("a", in_flight=(1, ahead), prefix=held(gpu=gpu)), endpoint("b")
    longer = endpoint("a", in_flight=(1, ahead + more), prefix=held(gpu=gpu))
    scorer = make(picks=picks)

    assert costs(scorer, longer, other)[0] > costs(scorer, fewer, other)[0]


@given(TOKENS, st.integers(0, 9), BEFORE)
def test_more_cached_is_never_dearer(ahead: int, gpu: int, picks: int) -> None:
    scorer = make(picks=picks)
    found = [endpoint(f"e{n}", prefix=held(gpu=n), in_flight=(1, ahead)) for n in (gpu, gpu + 1)]

    less, more = costs(scorer, *found)

    assert more < less
    assert math.isfinite(less)
