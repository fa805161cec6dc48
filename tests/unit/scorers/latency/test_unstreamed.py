"""Responses that do not show when they begin: those that are not streamed, and those that the gateway does not show."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.latency import accounts
from kvatlas.scorers.latency.cost_model import CostModel
from kvatlas.scorers.latency.expected import Expected
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from kvatlas.scorers.latency.lines import BOOKED, N_AHEAD, OVERDUE, QUEUE, TOKENS_AHEAD, TOKENS_HELD, WORK
from kvatlas.scorers.latency.params import LatencyCostParams
from support.candidates import endpoint
from support.joint import options_of, pair_of, scheduler
from support.rating import decide, routed_to, teach
from support.stages import server

PARAMS = LatencyCostParams(overhead_ms=10.0, prefill_tokens_per_second=1000.0)


def send(costs: CostModel, n_tokens: int, *, now: float, is_streamed: bool = False) -> Decision:
    """Route a request to the endpoint `a`."""
    request = RequestView("m", now, n_tokens=n_tokens, is_streamed=is_streamed)
    costs.expect(request, Candidates.of([endpoint("a")]))
    decision = routed_to(endpoint("a"), n_tokens=n_tokens, at=now)
    costs.picked(request, decision)
    return decision


def expected(costs: CostModel, now: float, *, n_booked: int = 0) -> Expected:
    """Return what is expected of a short request, while the fleet has so many tokens booked."""
    fleet = [endpoint("a", in_flight=(2, n_booked))]
    return costs.expect(RequestView("m", now, n_tokens=16), Candidates.of(fleet))


def test_a_prompt_behind_a_response_under_way_is_a_queue() -> None:
    costs = CostModel(PARAMS, ("gpu",))
    send(costs, 1000, now=0.0)
    send(costs, 20_000, now=60.0, is_streamed=True)

    assert expected(costs, 60.5).features[QUEUE][0] == pytest.approx(20_000 * (1 + 10_000 / 35_000) - 500)


def test_a_response_is_taken_to_begin_when_it_was_expected_to() -> None:
    costs = CostModel(PARAMS, ("gpu",))
    decision = send(costs, 1000, now=0.0)

    def lines(now: float) -> list[float]:
        accounts = expected(costs, now, n_booked=1000).accounts
        return [float(accounts[line][0]) for line in (N_AHEAD, TOKENS_AHEAD, TOKENS_HELD, BOOKED, OVERDUE)]

    assert lines(1.0) == [1.0, 1000.0, 0.0, 1000.0, 0.0]
    assert lines(1.1) == [0.0, 0.0, 1000.0, 1000.0, 1000.0], "the fleet books its tokens until its first byte"
    assert expected(costs, 1.1, n_booked=1000).features[QUEUE][0] == 0.0
    costs.ended(decision, tpot_s=None)
    assert lines(99.0) == [0.0] * 5


def test_all_prompts_of_a_request_are_ahead_until_they_were_to_be_computed() -> None:
    costs = CostModel(PARAMS, ("gpu",))
    request = RequestView("m", 0.0, n_tokens=1000, is_streamed=False, extent=20.0)
    costs.expect(request, Candidates.of([endpoint("a")]))
    decision = routed_to(endpoint("a"), n_tokens=1000)
    costs.picked(request, decision)

    def lines(now: float) -> list[float]:
        accounts = expected(costs, now, n_booked=20_000).accounts
        return [float(accounts[line][0]) for line in (WORK, BOOKED, OVERDUE)]

    work = 20 * 1000 * (1 + 500 / 35_000)
    assert lines(0.0) == [pytest.approx(work), 20_000.0, 0.0]
    assert lines(20.0) == [pytest.approx(work), 20_000.0, 0.0]
    assert lines(20.6) == [0.0, 20_000.0, 20_000.0]
    costs.ended(decision, tpot_s=None)
    assert costs.work_tokens == pytest.approx(0.01 * work)


def test_those_that_wait_anywhere_are_priced_without_responses_that_are_due() -> None:
    scorer = FleetCostScorer(FleetCostParams(overhead_ms=10.0, prefill_tokens_per_second=1000.0), ("gpu",))
    fleet = [endpoint("a", in_flight=(1, 1000)), endpoint("b")]

    def others_ms(now: float) -> float:
        inputs = scorer.rate(RequestView("m", now, n_tokens=16), Candidates.of(fleet)).inputs
        assert inputs is not None
        assert inputs.parts is not None
        return float(inputs.parts.values[inputs.parts.names.index("others")][1])

    decision = routed_to(fleet[0], n_tokens=1000)
    scorer.picked(RequestView("m", 0.0, n_tokens=1000, is_streamed=False), decision)
    teach(scorer.model, decision)

    assert others_ms(1.0) > 0.0
    assert others_ms(60.0) == 0.0
    scorer.answered(decision, ttft_s=70.0)
    assert others_ms(80.0) > 0.0, "what the fleet has booked now is of others"


def test_a_response_that_is_streamed_all_the_same_begins_with_its_first_byte() -> None:
    costs = CostModel(PARAMS, ("gpu",))
    early, late = send(costs, 1000, now=0.0), send(costs, 1000, now=0.0)
    costs.answered(early, ttft_s=0.5)
    expected(costs, 60.0)
    costs.answered(late, ttft_s=70.0)

    accounts = expected(costs, 80.0).accounts
    kinds = (N_AHEAD, WORK, BOOKED, OVERDUE, TOKENS_HELD)
    assert [accounts[line][0] for line in kinds] == [0.0, 0.0, 0.0, 0.0, 2000.0]
    for each in (early, late):
        costs.ended(each, tpot_s=None)
    accounts = expected(costs, 90.0).accounts
    assert [accounts[line][0] for line in kinds] == [0.0] * 5


def test_no_response_hides_a_queue_when_the_gateway_shows_none() -> None:
    costs = CostModel(PARAMS, ("gpu",))
    costs.ended(send(costs, 1000, now=0.0, is_streamed=True), tpot_s=None)
    send(costs, 1000, now=10.0, is_streamed=True)
    expected(costs, 60.0)
    send(costs, 20_000, now=60.0, is_streamed=True)

    assert expected(costs, 60.5).features[QUEUE][0] == pytest.approx(20_000 * (1 + 10_000 / 35_000) - 500)


def test_a_request_that_failed_does_not_say_that_the_gateway_shows_no_response() -> None:
    costs = CostModel(PARAMS, ("gpu",))
    seen, failed = (send(costs, 1000, now=0.0, is_streamed=True) for _ in range(2))
    costs.answered(seen, ttft_s=1.0)
    costs.ended(failed, tpot_s=None)
    send(costs, 1000, now=10.0, is_streamed=True)

    assert expected(costs, 60.0).accounts[N_AHEAD][0] == 1.0, "it waits for its first byte"


def test_responses_that_end_before_they_are_due_are_forgotten_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(accounts, "SPARE_ROWS", 20)
    costs = CostModel(PARAMS, ("gpu",))
    send(costs, 1000, now=0.0)
    for _ in range(60):
        costs.ended(send(costs, 10**9, now=0.0), tpot_s=None)

    assert costs.accounts.n_due <= 2 + 20
    assert expected(costs, 0.1).accounts[N_AHEAD] == [1.0]
    assert expected(costs, 60.0).accounts[N_AHEAD] == [0.0]


def test_a_prompt_on_a_prefill_server_is_ahead_until_its_response_is_due() -> None:
    made = scheduler(prefillTokensPerSecond=1000.0, overheadMs=10.0, fit=False, decodeWeight=1.0)
    fleet = [server("d", "decode"), server("p", "prefill")]
    busy = [replace(each, in_flight=replace(each.in_flight, requests=100)) for each in fleet[:1]] + fleet[1:]
    request = RequestView("m", 0.0, n_tokens=1000, is_streamed=False)
    decision = decide(made, request, busy)
    assert pair_of(decision) == ("p", "d")
    assert made.picked(request, decision) == ()

    def queue(now: float) -> float:
        found = decide(made, RequestView("m", now, n_tokens=1000), busy)
        return dict(options_of(found)[0].terms_ms)["queue"]

    assert queue(0.5) > 0.0
    assert queue(60.0) == 0.0
    second = RequestView("m", 60.0, n_tokens=20_000)
    assert made.picked(second, decide(made, second, busy)) == ()
    assert queue(60.5) > 20_000.0 / 2
