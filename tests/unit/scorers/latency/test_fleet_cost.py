"""`fleet-cost-scorer`: what a choice costs the request itself, and those that wait behind it."""

from __future__ import annotations

import math
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate, Load, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.latency.fleet_cost import LEAST_DISPLACED, FleetCostParams, FleetCostScorer
from kvatlas.scorers.latency.lengths import PRIOR_TOKENS
from kvatlas.scorers.latency.lines import MEMORY
from kvatlas.scorers.latency.tpot import TOKEN_MS
from support.built import built
from support.candidates import TIERS, endpoint, held, load
from support.rating import part_of, rated, routed_to, teach

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
PARAMS = FleetCostParams(
    overhead_ms=10.0,
    prefill_tokens_per_second=1000.0,
    load_tokens_per_second={"cpu": 10_000.0, "storage": 2_000.0},
    residency_factor=2.5,
    displacement_factor=0.0,
    scale_ms=100.0,
    fit=False,
)


def make(*, picks: int = 0, params: FleetCostParams = PARAMS) -> FleetCostScorer:
    """Return a scorer that saw requests of 160 uncached tokens each."""
    scorer = FleetCostScorer(params, TIERS)
    for _ in range(picks):
        pick(scorer, endpoint("other"))
    return scorer


def pick(scorer: FleetCostScorer, picked: Candidate) -> None:
    decision = routed_to(picked, n_tokens=REQUEST.n_tokens)
    scorer.picked(REQUEST, decision)
    teach(scorer.model, decision)


def pick_of(scorer: FleetCostScorer, picked: Candidate, *others: Candidate) -> None:
    """Pick one of several that were weighed."""
    costs(scorer, picked, *others)
    pick(scorer, picked)


def costs(scorer: FleetCostScorer, *candidates: Candidate) -> list[float]:
    return [each.raw or 0.0 for each in rated(scorer, REQUEST, candidates)]


def beyond_own(scorer: FleetCostScorer, *candidates: Candidate) -> list[float]:
    """Return what each endpoint costs beside the request's own time."""
    own = scorer.expected_ms(REQUEST, Candidates.of(candidates)).tolist()
    return [cost - ms for cost, ms in zip(costs(scorer, *candidates), own, strict=True)]


def work_ms(scorer: FleetCostScorer) -> float:
    """Return the time to compute the prompt: what an idle endpoint needs more than one that holds all of it."""
    cold, warm = scorer.expected_ms(REQUEST, Candidates.of([endpoint(), endpoint(prefix=held(gpu=10))]))
    return float(cold - warm)


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(endpoint(), id="cold"),
        pytest.param(endpoint(prefix=held(gpu=10)), id="on_gpu"),
        pytest.param(endpoint(prefix=held(cpu=10)), id="in_cpu_memory"),
    ],
)
def test_cost_of_an_idle_fleet_is_the_own_time(candidate: Candidate) -> None:
    assert beyond_own(make(), candidate) == [0.0]


HALF = 320
"""Tokens for which a GPU has room of which the prompt takes half."""


@pytest.mark.parametrize("kv", [0.0, 0.25, 1.0])
def test_blocks_cost_more_the_fuller_the_endpoint(kv: float) -> None:
    whole_ms = PARAMS.residency_factor * PRIOR_TOKENS * TOKEN_MS

    assert beyond_own(make(), endpoint(of=load(kv=kv, gpu_tokens=HALF))) == [pytest.approx(whole_ms * kv / 2)]
    assert beyond_own(make(), endpoint(of=load(kv=kv))) == [0.0], "an engine that does not tell its size"


def test_a_wait_for_blocks_counts_less_where_others_lack_them_too() -> None:
    full, free = load(kv=1.0, gpu_tokens=HALF), load(kv=0.0, gpu_tokens=HALF)
    params = msgspec.structs.replace(PARAMS, residency_factor=0.0)

    def counted(*others: Load) -> float:
        """Return the part of its wait that the first endpoint, which is full, costs beside four others."""
        rows = Candidates.of([endpoint(str(number), of=each) for number, each in enumerate((full, *others))])
        scorer = make(params=params)
        expected = scorer.model.expect(REQUEST, rows)
        wait = float((expected.features * expected.costs)[MEMORY, 0])
        assert wait > 0.0
        cost = costs(scorer, *map(rows.__getitem__, range(len(rows))))[0]
        return 1.0 - (float(expected.ttft_ms[0]) - cost) / wait

    assert counted(free, free, free, free) == pytest.approx(1.0)
    assert counted(full, free, free, full) == pytest.approx(0.75)
    assert counted(full, full, full, full) == pytest.approx(0.0)


def test_equal_endpoints_are_filled_evenly() -> None:
    fuller, emptier = (
        endpoint(name, of=load(kv=kv, gpu_tokens=1600)) for name, kv in (("a", 0.6), ("b", 0.4))
    )

    most, least = costs(make(picks=1), fuller, emptier)

    assert least < most


def test_blocks_that_requests_hold_already_cost_nothing() -> None:
    scorer, state = make(), load(kv=0.5, gpu_tokens=HALF)
    asked = msgspec.structs.replace(REQUEST, prefix=Prefix(array("I", range(160))))
    alone, shared = (endpoint(name, prefix=held(gpu=10), of=state) for name in ("alone", "shared"))

    def memory() -> list[float]:
        return part_of("memory", scorer, asked, alone, shared)

    blocks_ms = PARAMS.residency_factor * PRIOR_TOKENS * TOKEN_MS * 0.5 / 2
    assert memory() == pytest.approx([blocks_ms, blocks_ms])
    decision = routed_to(shared, n_tokens=160)
    scorer.picked(asked, decision)
    assert memory() == pytest.approx([blocks_ms, 0.0])
    scorer.ended(decision, tpot_s=None)
    assert memory() == pytest.approx([blocks_ms, blocks_ms])


def test_work_costs_more_the_more_requests_wait() -> None:
    scorer, busy, idle = make(picks=1), endpoint("busy", in_flight=(2, 640)), endpoint("idle")

    # 640 tokens ahead on two endpoints are two requests of 160 on each, of which half count anywhere
    assert beyond_own(scorer, busy, idle) == pytest.approx([work_ms(scorer)] * 2)


@pytest.mark.parametrize("picked", [0, 4])
def test_work_costs_most_where_requests_wait(picked: int) -> None:
    scorer, busy, idle = make(picks=1), endpoint("busy", of=load(waiting=4 - picked)), endpoint("idle")
    for _ in range(picked):  # those of its own are known before they are reported
        pick(scorer, busy)

    assert beyond_own(scorer, busy, idle) == pytest.approx([2 * work_ms(scorer), 0.0])


def test_waits_for_the_holder_instead_of_computing_again_when_all_are_busy() -> None:
    holder = endpoint("holder", prefix=held(gpu=10), in_flight=(5, 600))
    others = [endpoint(f"e{n}", in_flight=(4, 400)) for n in range(3)]
    alone, together = make(), make(picks=1)

    assert min(costs(alone, holder, *others)) < costs(alone, holder, *others)[0]
    assert min(costs(together, holder, *others)) == costs(together, holder, *others)[0]


@pytest.mark.parametrize(
    ("candidate", "price"),
    [
        pytest.param(endpoint(in_flight=(2, 10**9)), 15, id="they_may_go_anywhere"),
        pytest.param(endpoint(of=load(waiting=200)), 100, id="no_limit_where_they_wait"),
    ],
)
def test_price_of_requests_elsewhere_is_limited(candidate: Candidate, price: int) -> None:
    scorer = make(picks=1)

    assert beyond_own(scorer, candidate) == [pytest.approx(price * work_ms(scorer))]


def test_price_factor_0_is_the_own_time() -> None:
    params = msgspec.structs.replace(PARAMS, price_factor=0.0)

    assert beyond_own(make(picks=1, params=params), endpoint(in_flight=(1, 320))) == [0.0]


DISPLACING = msgspec.structs.replace(PARAMS, residency_factor=0.0, displacement_factor=1.0)
PROMPT_MS = 160.0
"""Time to compute the prompt, without attention."""


def test_blocks_displace_cached_ones_where_they_are_new_however_full_the_endpoint_is() -> None:
    scorer = make(picks=1, params=DISPLACING)
    cold, warm, full = (
        endpoint(),
        endpoint(prefix=held(gpu=10)),
        endpoint(prefix=held(gpu=10), of=load(kv=0.5)),
    )

    assert beyond_own(scorer, cold, warm, full) == pytest.approx([PROMPT_MS, 0.0, 0.0])


@pytest.mark.parametrize(
    ("gpu_tokens", "cached", "part"),
    [
        pytest.param(1600, 1600, 1.0, id="full"),
        pytest.param(1600, 1520, 0.5, id="room_for_half"),
        pytest.param(1600, 0, LEAST_DISPLACED, id="empty"),
        pytest.param(1600, 3200, 1.0, id="more_than_it_has"),
        pytest.param(0, 0, 1.0, id="size_unknown"),
    ],
)
def test_fewer_blocks_are_displaced_where_some_hold_nothing_yet(
    gpu_tokens: int, cached: int, part: float
) -> None:
    scorer = make(picks=1, params=DISPLACING)
    filled = endpoint(of=load(gpu_tokens=gpu_tokens, gpu_cached_tokens=cached))

    assert beyond_own(scorer, filled) == pytest.approx([PROMPT_MS * part])


def test_endpoint_whose_events_do_not_come_is_taken_for_full() -> None:
    params = msgspec.structs.replace(DISPLACING, price_factor=0.0)
    scorer, dark = make(picks=1, params=params), endpoint("dark", of=load(gpu_tokens=1600))
    assert beyond_own(scorer, dark) == pytest.approx([PROMPT_MS * LEAST_DISPLACED])

    pick(scorer, dark)

    assert beyond_own(scorer, dark) == pytest.approx([PROMPT_MS])


def test_new_prompts_count_whole_where_blocks_hold_nothing_yet() -> None:
    fleet = [
        endpoint(name, of=load(gpu_tokens=1600, gpu_cached_tokens=n)) for name, n in (("a", 0), ("b", 1600))
    ]

    assert beyond_own(make(picks=1, params=DISPLACING), *fleet) == pytest.approx([PROMPT_MS] * 2)


def test_displacing_costs_the_less_the_more_requests_load_from_slower_tiers() -> None:
    scorer, cold = make(picks=500, params=DISPLACING), endpoint("cold")
    (before,) = beyond_own(scorer, cold)
    for _ in range(500):
        pick(scorer, endpoint("other", prefix=held(gpu=0, cpu=8)))  # 128 tokens are loaded, 32 are computed

    assert before == pytest.approx(PROMPT_MS)
    assert beyond_own(scorer, cold) == [pytest.approx(PROMPT_MS * 32 / 160, rel=0.01)]


def test_displacing_costs_nothing_before_the_first_request() -> None:
    assert beyond_own(make(params=DISPLACING), endpoint()) == [0.0]


def test_new_prompts_cost_less_where_fewer_new_ones_were_placed_lately() -> None:
    scorer = make(params=msgspec.structs.replace(DISPLACING, price_factor=0.0))
    more, less = endpoint("more"), endpoint("less")
    pick_of(scorer, more, less)

    assert beyond_own(scorer, more, less) == pytest.approx([2 * PROMPT_MS, 0.0])


def test_new_prompts_cost_the_same_wherever_others_were_continued() -> None:
    scorer = make(params=msgspec.structs.replace(DISPLACING, price_factor=0.0))
    pick_of(scorer, endpoint("continued", prefix=held(gpu=5)), endpoint("other"))

    assert beyond_own(scorer, endpoint("continued"), endpoint("other")) == pytest.approx([PROMPT_MS] * 2)


def test_what_a_prompt_adds_costs_less_where_less_of_all_prompts_was_placed_lately() -> None:
    scorer = make(params=msgspec.structs.replace(DISPLACING, price_factor=0.0))
    pick_of(scorer, endpoint("more"), endpoint("less"))
    pick_of(scorer, endpoint("less", prefix=held(gpu=5)), endpoint("more"))

    on_more, on_less = beyond_own(scorer, endpoint("more"), endpoint("less", prefix=held(gpu=5)))

    assert (on_more, on_less) == pytest.approx((PROMPT_MS + PROMPT_MS / 2, 0.0))


def test_nothing_placed_on_a_fast_endpoint_makes_no_cost_negative() -> None:
    params = FleetCostParams(overhead_ms=1.0, prefill_tokens_per_second=1000.0, scale_ms=100.0)
    scorer, busy, fast = make(params=params), endpoint("busy"), endpoint("fast")
    for _ in range(20):
        pick_of(scorer, busy, fast)
    accounts = scorer.model.accounts
    for _ in range(200):
        accounts.learn_pace(accounts.row("fast"), -0.5)

    ratings = rated(scorer, REQUEST, [busy, fast])

    assert all((each.raw or 0.0) > 0.0 and 0.0 < each.score < 1.0 for each in ratings)


def test_where_more_was_placed_lately_says_nothing_of_what_an_endpoint_has() -> None:
    scorer = make(params=msgspec.structs.replace(DISPLACING, price_factor=0.0))
    more, less, holder = endpoint("more"), endpoint("less"), endpoint("holder", prefix=held(gpu=10))
    pick(scorer, more)

    assert beyond_own(scorer, more, less, holder) == pytest.approx([PROMPT_MS, PROMPT_MS, 0.0])


def test_price_follows_the_work_of_requests() -> None:
    scorer, busy = make(picks=1), endpoint(in_flight=(2, 640))
    (before,) = beyond_own(scorer, busy)
    for _ in range(500):
        pick(scorer, endpoint("other", prefix=held(gpu=5)))

    assert beyond_own(scorer, busy) == [pytest.approx(2 * before, rel=0.01)]


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


def test_costs_are_learned_and_reported_as_those_of_latency_cost_scorer() -> None:
    scorer = make(params=FleetCostParams(overhead_ms=10.0, prefill_tokens_per_second=1000.0))

    scorer.answered(routed_to(endpoint(), n_tokens=160), ttft_s=0.2)

    (report,) = scorer.reports()
    assert report.n_observations == 1.0


def test_no_candidates_have_no_costs() -> None:
    assert costs(make(picks=1)) == []


def test_example_of_the_page_is_what_it_costs() -> None:
    scorer = FleetCostScorer(FleetCostParams(), TIERS)
    before = RequestView(model="m", now=100.0, n_tokens=2_000)
    for name in ("vllm-0", *["vllm-1"] * 5):
        decision = routed_to(endpoint(name), n_tokens=before.n_tokens, at=before.now)
        scorer.picked(before, decision)
        teach(scorer.model, decision)
    table = [
        endpoint("vllm-0", in_flight=(1, 2_000)),
        endpoint("vllm-1", prefix=held(gpu=500, n_blocks=500), in_flight=(5, 10_000)),
    ]
    request = RequestView(model="m", now=100.0, n_tokens=8_000)

    assert scorer.expected_ms(request, Candidates.of(table)).round().tolist() == [719, 678]
    assert [round(each.raw or 0.0) for each in rated(scorer, request, table)] == [3_044, 678]


def test_idle_endpoint_with_unknown_load_scores_0_beside_a_full_one() -> None:
    """Its blocks cost nothing, since nobody knows how full it is, so it would cost less than any other."""
    down, full = endpoint("down"), endpoint("full", of=load(waiting=9, running=9, kv=1.0))

    ratings = rated(make(picks=9), REQUEST, [down, full])
    assert ratings[0].score == 0.0 < ratings[1].score
    assert (ratings[0].raw or 0.0) < (ratings[1].raw or 0.0)
