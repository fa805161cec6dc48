"""Objectives in the cost of `fleet-cost-scorer`: met first, then least to others, and those of the requests beside it."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.indexer.prefix import Prefix
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision, Origin
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.ratings import Parts
from kvatlas.scorers.core.slo import Slo
from kvatlas.scorers.latency import accounts, objectives
from kvatlas.scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from kvatlas.scorers.latency.lengths import PRIOR_TOKENS
from kvatlas.scorers.latency.objectives import RunningObjectives
from kvatlas.scorers.latency.tpot import TOKEN_MS
from support.candidates import TIERS, endpoint, held, load
from support.rating import rated, routed_to

N_TOKENS = 160
PARAMS = FleetCostParams(
    overhead_ms=10.0,
    prefill_tokens_per_second=1000.0,
    residency_factor=4000.0 / (PRIOR_TOKENS * TOKEN_MS),
    displacement_factor=0.0,
    scale_ms=100.0,
    fit=False,
)
PREFIX = Prefix(array("I", range(N_TOKENS)))
PLAIN = RequestView(model="m", now=0.0, n_tokens=N_TOKENS, prefix=PREFIX)


def wanting(**limits: float) -> RequestView:
    headers = {f"x-slo-{name}-ms": str(ms) for name, ms in limits.items()}
    return RequestView(model="m", now=0.0, n_tokens=N_TOKENS, headers=headers, prefix=PREFIX)


def costs(scorer: FleetCostScorer, request: RequestView, *fleet: Candidate) -> list[float]:
    return [each.raw or 0.0 for each in rated(scorer, request, fleet)]


def best(scorer: FleetCostScorer, request: RequestView, *fleet: Candidate) -> str:
    found = costs(scorer, request, *fleet)
    return fleet[found.index(min(found))].name


def send(scorer: FleetCostScorer, to: Candidate, *, tpot_ms: float) -> Decision:
    """Send a request without a prompt, but with an objective."""
    origin = Origin("r", "", "", 0, "", Slo(None, tpot_ms))
    decision = routed_to(to, origin=origin)
    scorer.picked(RequestView(model="m", now=0.0, n_tokens=0), decision)
    return decision


COLD = endpoint("cold")
FULLER, FULL = (
    endpoint(name, prefix=held(gpu=10), of=load(kv=kv, gpu_tokens=10 * N_TOKENS))
    for name, kv in (("fuller", 0.25), ("full", 0.5))
)
"""What a request takes there costs others 100 and 200 ms; to compute its prompt takes about 160 ms."""


def test_request_goes_where_it_meets_its_objective_although_others_wait_longer() -> None:
    scorer = FleetCostScorer(PARAMS, TIERS)

    assert best(scorer, PLAIN, COLD, FULL) == "cold"
    assert best(scorer, wanting(ttft=60), COLD, FULL) == "full"


def test_of_endpoints_that_meet_the_objective_the_one_that_costs_others_least_is_taken() -> None:
    scorer = FleetCostScorer(PARAMS, TIERS)

    assert best(scorer, PLAIN, COLD, FULLER) == "fuller", "sooner for itself"
    assert best(scorer, wanting(ttft=20_000), COLD, FULLER) == "cold", "blocks stay free for others"
    assert best(scorer, wanting(tpot=1_000), COLD, FULLER) == "fuller", "it named no first token"


def test_cost_decides_if_no_endpoint_can_meet_the_objective() -> None:
    scorer = FleetCostScorer(PARAMS, TIERS)
    plain, hopeless = (costs(scorer, each, COLD, FULLER) for each in (PLAIN, wanting(ttft=0.01)))

    assert [each - PARAMS.miss_ms for each in hopeless] == pytest.approx(plain, abs=0.1)


def test_request_keeps_away_from_steps_that_others_need_short() -> None:
    scorer = FleetCostScorer(PARAMS, TIERS)
    loose, a, b = wanting(tpot=500), endpoint("a"), endpoint("b")
    under_way = [send(scorer, a, tpot_ms=15.0) for _ in range(3)]

    assert best(scorer, loose, a, b) == "b"
    for each in under_way:
        scorer.ended(each, tpot_s=None)
    first, second = costs(scorer, loose, a, b)
    assert first == second


def test_objectives_of_requests_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "MAX_OPEN", 10)
    scorer, fresh = FleetCostScorer(PARAMS, TIERS), FleetCostScorer(PARAMS, TIERS)
    a, b = endpoint("a"), endpoint("b")
    sent = [send(scorer, a, tpot_ms=15.0) for _ in range(30)]
    for each in sent:
        scorer.ended(each, tpot_s=None)

    loose = wanting(tpot=500)
    assert costs(scorer, loose, a, b) == costs(fresh, loose, a, b)


def test_prompt_endangers_most_where_prompts_already_take_the_time_of_steps() -> None:
    scorer, a, b = FleetCostScorer(PARAMS, TIERS), endpoint("a"), endpoint("b")
    send(scorer, a, tpot_ms=50.0)
    send(scorer, b, tpot_ms=50.0)
    for _ in range(9):  # prompts of two seconds each: 15 ms alone become 15 / (1 - 0.6)
        long = RequestView(model="m", now=0.0, n_tokens=2000)
        scorer.picked(long, routed_to(b, n_tokens=2000))
    table = Candidates.of([a, b])
    inputs = scorer.rate(wanting(tpot=500), table).inputs

    assert inputs is not None
    assert isinstance(inputs.parts, Parts)
    found = dict(zip(inputs.parts.names, inputs.parts.values.tolist(), strict=True))["endangered"]
    assert found[1] > 0.01 * PARAMS.miss_ms > 100.0 * found[0]


def test_request_without_objectives_costs_what_it_costs_without_those_of_others() -> None:
    scorer, other = FleetCostScorer(PARAMS, TIERS), FleetCostScorer(PARAMS, TIERS)
    for each, tpot_ms in ((scorer, 15.0), (other, 1e9)):
        send(each, COLD, tpot_ms=tpot_ms)

    assert costs(scorer, PLAIN, COLD, FULLER) == costs(other, PLAIN, COLD, FULLER)


def test_objectives_are_not_read_if_missing_them_costs_nothing() -> None:
    scorer = FleetCostScorer(
        FleetCostParams(overhead_ms=10.0, prefill_tokens_per_second=1000.0, fit=False, miss_ms=0.0), TIERS
    )

    assert costs(scorer, wanting(ttft=60), COLD, FULL) == costs(scorer, PLAIN, COLD, FULL)


def test_parts_add_up_to_the_cost() -> None:
    scorer = FleetCostScorer(PARAMS, TIERS)
    send(scorer, FULL, tpot_ms=15.0)
    table = Candidates.of([COLD, FULLER, FULL])
    inputs = scorer.rate(wanting(ttft=100, tpot=16), table).inputs

    assert inputs is not None
    assert isinstance(inputs.parts, Parts)
    found = dict(zip(inputs.parts.names, inputs.parts.values.tolist(), strict=True))
    assert inputs.parts.values.sum(axis=0).tolist() == pytest.approx(inputs.column(table).tolist())
    assert found["missed"][0] > found["missed"][1] > 0.0
    assert found["endangered"][2] > 0.0 == found["endangered"][0]


def test_running_objectives_of_removed_endpoints_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objectives, "MAX_ROWS", 20)
    running = RunningObjectives()
    running.begun("busy", 30.0)
    for number in range(40):
        running.begun(f"gone-{number}", 50.0)
        running.ended(f"gone-{number}", 50.0)
    running.begun("kept", 50.0)
    columns = running.columns(Candidates.of([endpoint("kept"), endpoint("new"), endpoint("busy")]))

    assert columns is not None
    limits, counts = columns
    assert counts.tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert limits.ravel().tolist() == pytest.approx([30.0, 50.0], rel=0.05)
    running.ended("busy", 30.0)
    running.ended("kept", 50.0)
    assert running.columns(Candidates.of([endpoint("kept")])) is None
