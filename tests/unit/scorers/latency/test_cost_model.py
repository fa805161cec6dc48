"""Cost model: requests under way, paces of endpoints, times per output token, and input of any kind."""

from __future__ import annotations

import math
import random
from array import array
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.fleet.replicas.sums import Sums
from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision, Origin
from kvatlas.scorers.core.model import PREFILL_SPEED, Candidate, RequestView
from kvatlas.scorers.latency import accounts
from kvatlas.scorers.latency.accounts import Accounts
from kvatlas.scorers.latency.cost import LatencyCostScorer
from kvatlas.scorers.latency.cost_model import CostModel
from kvatlas.scorers.latency.held_prompts import HeldPrompts
from kvatlas.scorers.latency.lengths import MAX_KEYS
from kvatlas.scorers.latency.lines import MEMORY, N_AHEAD, PREFILL, TOKENS_AHEAD, TOKENS_IN_USE, WORK
from kvatlas.scorers.latency.paces import MAX_PACE
from kvatlas.scorers.latency.params import LatencyCostParams
from kvatlas.scorers.latency.releases import N_PARTS
from support.candidates import endpoint, held, load
from support.rating import routed_to
from support.sibling_plugins import Sibling, exchange

PARAMS = LatencyCostParams(overhead_ms=10.0, prefill_tokens_per_second=1000.0)


def model(**params: object) -> CostModel:
    return CostModel(msgspec.structs.replace(PARAMS, **params), ("gpu",))


def view(n_tokens: int, now: float = 0.0) -> RequestView:
    return RequestView(model="m", now=now, n_tokens=n_tokens)


def send(
    costs: CostModel, to: str, n_tokens: int, *, now: float = 0.0, fleet: tuple[str, ...] = ()
) -> Decision:
    """Route a request to one endpoint of a fleet."""
    table = [endpoint(name) for name in fleet or (to,)]
    request = view(n_tokens, now)
    costs.expect(request, Candidates.of(table))
    decision = msgspec.structs.replace(routed_to(endpoint(to), n_tokens=n_tokens), at=now)
    costs.picked(request, decision)
    return decision


def ms(costs: CostModel, *fleet: Candidate, n_tokens: int = 1000, now: float = 0.0) -> list[float]:
    found: list[float] = costs.expect(view(n_tokens, now), Candidates.of(fleet)).ttft_ms.tolist()
    return found


def test_tokens_ahead_become_fewer_while_they_are_computed() -> None:
    costs = model(fit=False)
    first = send(costs, "a", 1000)
    booked = endpoint("a", in_flight=(1, 1000))
    alone = ms(costs, endpoint("b"))[0]

    def wait(now: float) -> float:
        return ms(costs, booked, now=now)[0] - alone

    attention = 1000 * 500 / 35_000
    assert wait(0.0) == pytest.approx(1000 + attention, abs=1)
    assert wait(0.4) == pytest.approx(600 + attention, abs=1)
    assert wait(9.0) == pytest.approx(0, abs=1)
    second = send(costs, "a", 500, now=0.5)
    costs.answered(first, ttft_s=1.02)
    ahead = endpoint("a", in_flight=(2, 500))
    assert ms(costs, ahead, now=1.12)[0] - alone == pytest.approx(400, abs=6), "the second began at 1.02"
    for each in (first, second):
        costs.ended(each, tpot_s=None)
    assert ms(costs, endpoint("a"), now=2.0)[0] == pytest.approx(alone)


def test_nothing_is_computed_of_prompts_that_wait_in_the_engine() -> None:
    costs = model(fit=False)
    for _ in range(2):
        send(costs, "a", 1000)
    alone = ms(costs, endpoint("b"))[0]

    def wait(waiting: int) -> float:
        state = load(waiting=waiting, running=2 - waiting)
        return ms(costs, endpoint("a", of=state, in_flight=(2, 2000)), now=60.0)[0] - alone

    attention = 1000 * 500 / 35_000
    assert wait(0) == pytest.approx(0, abs=2)
    assert wait(1) == pytest.approx(1000 + attention, abs=2)
    assert wait(2) == pytest.approx(2000 + 2 * attention, abs=2)


@pytest.mark.parametrize(
    ("n_ahead", "gpu_tokens", "uncached"),
    [
        pytest.param(4, 100, 0.0, id="each_finds_what_others_bring"),
        pytest.param(8, 100, 80.0, id="twice_as_much_as_can_be_kept"),
        pytest.param(8, 0, 0.0, id="size_unknown"),
    ],
)
def test_a_prefix_is_lost_where_too_much_waits_before_it(
    n_ahead: int, gpu_tokens: int, uncached: float
) -> None:
    costs = model()
    for _ in range(n_ahead):
        send(costs, "a", 100)

    holder = endpoint("a", prefix=held(gpu=10), of=load(gpu_tokens=gpu_tokens))

    assert costs.expect(view(160), Candidates.of([holder])).features[PREFILL, 0] == pytest.approx(uncached)


def test_a_wait_for_blocks_ends_with_the_responses_that_hold_them() -> None:
    """Responses take 1 s: on one endpoint those that hold its blocks began 0.8 s ago, on the other just now."""
    costs = model()
    for _ in range(2 * N_PARTS):
        decision = send(costs, "other", 1000)
        costs.answered(decision, ttft_s=1.0)
        costs.generated(decision, n_tokens=100)
        costs.ended(decision, tpot_s=0.01)
    for name, began in (("early", 9.2), ("late", 10.0)):
        costs.answered(send(costs, name, 1000, now=began - 1.0), ttft_s=1.0)

    full = load(running=1, kv=0.9, gpu_tokens=8000)
    rows = Candidates.of([endpoint(name, of=full, in_flight=(1, 0)) for name in ("early", "late")])
    expected = costs.expect(view(1000, 10.0), rows)

    assert (expected.features[MEMORY] / 1000.0).tolist() == pytest.approx([0.2, 1.0], abs=0.1)
    assert expected.ttft_ms[1] - expected.ttft_ms[0] == pytest.approx(800, abs=100)


def test_costs_begin_at_the_speed_that_an_engine_publishes() -> None:
    def told(name: str, zone: str, speed: float) -> Candidate:
        return msgspec.structs.replace(
            endpoint(name, labels={"zone": zone}), attributes={PREFILL_SPEED: speed}
        )

    scorer = LatencyCostScorer(msgspec.structs.replace(PARAMS, group_label="zone"), ("gpu",))
    fast, slow, silent = (
        told("f", "fast", 4000.0),
        told("s", "slow", 500.0),
        endpoint("n", labels={"zone": "n"}),
    )
    before = ms(scorer.model, fast, slow, silent)
    for each in (fast, slow, silent):
        decision = routed_to(each, n_tokens=1000)
        scorer.picked(view(1000), decision)
        scorer.ended(decision, tpot_s=None)
    after = ms(scorer.model, fast, slow, silent)
    work = before[0] - PARAMS.overhead_ms
    assert len(set(before)) == 1
    assert [each - PARAMS.overhead_ms for each in after] == pytest.approx(
        [work / 4, work * 2, work], rel=0.02
    )


def test_an_endpoint_at_half_the_speed_is_found_without_a_label() -> None:
    costs, rng = model(), random.Random(1)
    for number in range(300):
        name, factor = ("slow", 2.0) if number % 2 else ("fast", 1.0)
        n_tokens = rng.randrange(100, 4000)
        decision = send(costs, name, n_tokens, now=100.0 * number, fleet=("fast", "slow"))
        costs.answered(decision, ttft_s=factor * (10 + n_tokens) / 1000)
        costs.ended(decision, tpot_s=factor * 0.02)

    fast, slow = ms(costs, endpoint("fast"), endpoint("slow"), now=1e6)
    assert slow / fast == pytest.approx(2.0, rel=0.1)
    assert fast == pytest.approx(1010, rel=0.1)
    expected = costs.expect(view(100, 1e6), Candidates.of([endpoint("fast"), endpoint("slow")]))
    assert costs.tpot_ms(expected).tolist() == pytest.approx([20, 40], rel=0.15)


def test_equal_endpoints_keep_about_the_same_pace() -> None:
    costs, rng = model(), random.Random(2)
    for number in range(600):
        name, n_tokens = f"e{number % 4}", rng.randrange(100, 4000)
        decision = send(costs, name, n_tokens, now=float(number))
        costs.answered(decision, ttft_s=math.exp(rng.gauss(0.0, 0.1)) * (10 + n_tokens) / 1000)
        costs.ended(decision, tpot_s=None)

    found = ms(costs, *(endpoint(f"e{number}") for number in range(4)), now=1000.0)
    assert max(found) / min(found) < 1.15


def test_times_per_token_of_a_fleet_that_is_slow_at_prompts_are_learned_beside_its_speed() -> None:
    costs, rng = model(), random.Random(3)
    for number in range(60):
        name, n_tokens = f"e{number % 2}", rng.randrange(100, 4000)
        decision = send(costs, name, n_tokens, now=60.0 * number)
        costs.answered(decision, ttft_s=1.5 * (10 + n_tokens) / 1000)
        costs.ended(decision, tpot_s=math.exp(rng.gauss(0.0, 0.4)) * 0.024)

    expected = costs.expect(view(100, 1e6), Candidates.of([endpoint("e0"), endpoint("e1")]))
    assert costs.tpot_ms(expected).tolist() == pytest.approx([24.0, 24.0], rel=0.1)
    again = send(costs, "e0", 100, now=1e6, fleet=("e0", "e1"))
    assert costs.prediction(again) == pytest.approx((expected.ttft_ms[0], 24.0), rel=0.1)


def test_prompts_that_are_due_make_output_tokens_slower() -> None:
    costs = model()
    for number in range(60):
        decision = send(costs, "busy", 500, now=number / 2)
        costs.answered(decision, ttft_s=0.5)
    table = Candidates.of([endpoint("busy", of=load(running=1)), endpoint("idle", of=load(running=1))])

    busy, idle = costs.tpot_ms(costs.expect(view(100, 30.0), table)).tolist()

    assert busy > 1.3 * idle


def test_output_lengths_of_a_model_are_known_however_many_tenants_there_are() -> None:
    costs = model()
    for _ in range(30):
        costs.generated(routed_to(endpoint("a")), n_tokens=2000)
    for number in range(2 * MAX_KEYS):  # tenants are named by clients
        origin = Origin("", "", "", 0, f"tenant-{number}")
        decision = msgspec.structs.replace(routed_to(endpoint("a")), model="other", origin=origin)
        costs.generated(decision, n_tokens=10)

    assert costs.lengths.mean("m") == pytest.approx(2000)
    assert sorted(costs.lengths.shared.known()) == ["", "m", "other"]


def test_requests_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_OPEN", 10)
    costs = model()
    kept = [send(costs, "a", 100) for _ in range(30)]

    assert sum(costs.prediction(each) is not None for each in kept) == 10
    assert ms(costs, endpoint("a", in_flight=(10, 1000)))[0] < 10 + 1000 + 1000 + 100


def test_removed_endpoints_are_forgotten_and_requests_there_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "SPARE_ROWS", 20)
    costs = model()
    kept = send(costs, "kept", 700)
    for number in range(100):
        costs.ended(send(costs, f"gone-{number}", 100), tpot_s=None)

    assert costs.prediction(kept) is not None
    assert ms(costs, endpoint("kept"))[0] > 1700
    costs.ended(kept, tpot_s=None)
    assert ms(costs, endpoint("kept"))[0] < 1100


def test_forgotten_endpoints_are_no_longer_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "SPARE_ROWS", 20)
    costs, shown = model(), Sums(lambda: 0.0)
    shown.use({"accounts": costs.accounts.shared})
    sibling = Sums(lambda: 0.0)
    other = model()
    sibling.use({"accounts": other.accounts.shared})
    for number in range(100):
        costs.ended(send(costs, f"gone-{number}", 100), tpot_s=None)
        for payload in shown.drain():
            sibling.apply("a", payload)

    decoded = [msgspec.msgpack.decode(payload) for payload in shown.whole()]
    assert sum(map(len, decoded)) <= 21


def test_endpoints_that_come_and_go_are_not_shared_for_ever() -> None:
    costs = model()
    for number in range(3 * accounts.SPARE_ROWS):
        costs.expect(view(1), Candidates.of([endpoint(f"{number}")]))
        assert len(costs.accounts.shared.known()) <= 2 + accounts.SPARE_ROWS


def test_siblings_know_what_is_left_after_any_work() -> None:
    costs, other = model(), Accounts()
    siblings = [Sibling("a", {"accounts": costs.accounts.shared}), Sibling("b", {"accounts": other.shared})]
    send(costs, "a", 0)  # nothing is known of its prompt: no work

    for n_tokens in range(100, 140):
        for each in [send(costs, "a", n_tokens), send(costs, "a", n_tokens + 7)]:
            costs.ended(each, tpot_s=None)
        exchange(siblings)
        left = other.columns(Candidates.of([endpoint("a")]))[[N_AHEAD, WORK], 0]
        assert left.tolist() == pytest.approx([1.0, 0.0]), n_tokens


def test_prompts_under_way_are_found_though_endpoints_are_forgotten_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounts, "SPARE_ROWS", 20)
    costs, prefix = model(), Prefix(array("I", range(64)))
    request = RequestView(model="m", now=0.0, n_tokens=64, prefix=prefix)
    old = [endpoint(f"old-{number}", prefix=held(n_blocks=4)) for number in range(24)]
    costs.expect(request, Candidates.of(old))
    costs.picked(request, routed_to(old[-1], n_tokens=64))

    found = costs.expect(request, Candidates.of([old[-1], endpoint("new")]))
    assert [each.n_requests for each in found.sharing] == [1]
    assert found.accounts[TOKENS_IN_USE].tolist() == [64.0, 0.0]


def test_prompts_that_are_not_followed_any_more_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "SPARE_ROWS", 20)
    monkeypatch.setattr(accounts, "HeldPrompts", partial(HeldPrompts, max_keys=8))
    costs = model()
    old = [endpoint(f"old-{number}", prefix=held(n_blocks=4)) for number in range(24)]
    for first in (0, 0, 1):
        prefix = Prefix(array("I", range(first, first + 64)))
        request = RequestView(model="m", now=0.0, n_tokens=64, prefix=prefix)
        costs.expect(request, Candidates.of(old))
        costs.picked(request, routed_to(old[-1], n_tokens=64))
    assert costs.expect(request, Candidates.of(old)).accounts[TOKENS_AHEAD, -1] == 128, "of two prompts"

    found = costs.expect(request, Candidates.of([old[-1], endpoint("new")]))
    assert found.accounts[TOKENS_AHEAD, 0] == 192, (
        "there is no room for the first one while the others are followed"
    )


def test_one_stall_does_not_move_the_time_for_which_blocks_are_held() -> None:
    costs = model()
    for number in range(50):
        costs.ended(send(costs, "a", 100, now=float(number)), tpot_s=0.02)
    before = costs.residence_ms("m")

    costs.ended(send(costs, "a", 100, now=60.0), tpot_s=300.0)
    assert before < costs.residence_ms("m") < 1.1 * before


def test_request_ends_though_siblings_told_that_tokens_take_no_time() -> None:
    costs = model()
    costs.means.shared.take("x", "tpot", [0.0, 1e6, 1.0, 0.0], now=0.0)
    decision = send(costs, "a", 100)
    costs.generated(decision, n_tokens=200)
    assert costs.residence_ms("m") == 0.0

    costs.ended(decision, tpot_s=0.02)
    assert costs.residence_ms("m") > 0.0


def test_nothing_is_learned_of_first_tokens_when_a_request_has_several_prompts() -> None:
    costs = model()
    first, later = send(costs, "a", 1000), send(costs, "a", 1000, now=1.0)
    several = msgspec.structs.replace(first, n_prompts=64)

    costs.answered(several, ttft_s=60.0)
    assert (costs.ttft_error, costs.reports()) == (None, [])
    costs.answered(later, ttft_s=1.0)
    assert costs.ttft_error is not None


NUMBERS = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 10)


@given(
    times=st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60),
    lengths=st.lists(st.integers(-5, 10**12), max_size=20),
    tokens=st.lists(st.integers(0, 10**9), min_size=1, max_size=60),
    kv=st.floats(0, 2),
)
def test_costs_stay_finite_and_positive_whatever_is_observed(
    times: list[tuple[float, float]], lengths: list[int], tokens: list[int], kv: float
) -> None:
    costs = model()
    for number, (ttft_s, tpot_s) in enumerate(times):
        name = f"e{number % 3}"
        decision = send(costs, name, tokens[number % len(tokens)], now=float(number))
        costs.answered(decision, ttft_s=ttft_s)
        if number % 2:
            costs.ended(decision, tpot_s=tpot_s)
    for n_tokens in lengths:
        costs.generated(routed_to(endpoint("e0")), n_tokens=n_tokens)

    table = Candidates.of([endpoint(f"e{n}", of=load(running=3, waiting=n, kv=kv)) for n in range(4)])
    expected = costs.expect(view(1000, 100.0), table)
    fresh = model().expect(view(1000, 100.0), table)
    most = 20.01 * MAX_PACE
    for found in (expected.ttft_ms, costs.tpot_ms(expected)):
        assert all(0 < each < math.inf for each in found.tolist())
    assert (expected.costs <= fresh.costs * most).all()
    assert (expected.costs >= fresh.costs / most).all()


@given(n_tokens=st.integers(1, 50_000), more=st.integers(1, 50_000), cached=st.integers(0, 10))
def test_more_tokens_to_compute_or_ahead_never_cost_less(n_tokens: int, more: int, cached: int) -> None:
    costs = model()

    def alone(n: int, ahead: int = 0) -> float:
        return ms(costs, endpoint("a", in_flight=(1, ahead)), n_tokens=n)[0]

    assert alone(n_tokens) < alone(n_tokens + more)
    assert alone(n_tokens, cached) <= alone(n_tokens, cached + more)
