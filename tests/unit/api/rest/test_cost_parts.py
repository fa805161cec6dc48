"""The parts of a cost in answers and in `kvatlas explain`: why this endpoint costs least."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvatlas.api.rest.decision_models import DecisionOut, ScoreResponse
from kvatlas.api.rest.explanation import explained, score_body
from kvatlas.app.cli.explain import print_decision
from kvatlas.routing.decision_log import DecisionLog, KeptDecision
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.latency.arithmetic import COST_PARTS
from support.candidates import endpoint, held, load, no_chance
from support.plans import planned, profile

PLAN = planned("fleet-cost-scorer", **profile("fleet-cost-scorer"))
REQUEST = RequestView(model="m", now=0.0, n_tokens=160)
FLEET = (
    endpoint("cold", of=load(kv=0.5)),
    endpoint("warm", prefix=held(gpu=8), of=load()),
    endpoint("cpu", prefix=held(cpu=10), of=load(), in_flight=(1, 50_000)),
)


@pytest.fixture(name="decision")
def a_decision() -> Decision:
    """Return a decision after one whose work is typical; the response has begun, and is not at its end."""
    table = Candidates.of(FLEET)
    first = PLAN.profile.decide(REQUEST, table, rng=no_chance)
    PLAN.profile.picked(REQUEST, first)
    PLAN.profile.answered(first, ttft_s=1.0)
    return PLAN.profile.decide(REQUEST, table, rng=no_chance)


def kept(decision: Decision) -> KeptDecision:
    log = DecisionLog(max_count=1, max_bytes=10**6)
    log.add(decision, request_id="r", at=2.0)
    return log.page(limit=1)[0]


def test_answers_say_what_a_cost_is_made_of(decision: Decision) -> None:
    for each in (decision, decision.lasting()):
        answer = ScoreResponse.model_validate_json(score_body(each))
        parts = {found.name: found.scores[0].parts_ms or {} for found in answer.endpoints}
        for found in answer.endpoints:
            assert sum(parts[found.name].values()) == pytest.approx(found.scores[0].raw, rel=1e-6)
        assert answer.picked == ["warm"]
        assert parts["cold"]["prefill"] > parts["warm"]["prefill"] > parts["cpu"]["prefill"] == 0.0
        assert parts["cold"]["memory"] > parts["warm"]["memory"] > 0.0
        assert parts["cold"]["others"] > 0.0
        assert parts["cpu"]["load"] > 0.0
        assert parts["cpu"]["queue"] == pytest.approx(1000 * 50_000 / 15_928, rel=0.01)


def test_explain_prints_what_each_endpoint_costs_the_least_first(decision: Decision) -> None:
    out = io.StringIO()

    print_decision(
        Console(file=out, width=160), DecisionOut.model_validate_json(explained(kept(decision)).body)
    )

    table = out.getvalue().split("fleet-cost-scorer, ms")[1].splitlines()
    assert table[0].split() == ["total", "overhead", "queue", "prefill", "load", "others", "memory"]
    assert [line.split()[0] for line in table[1:4]] == ["warm", "cold", "cpu"]
    assert table[1].endswith("picked")


def test_bytes_of_parts_are_counted(decision: Decision) -> None:
    found = decision.lasting().inputs[0]

    assert found is not None
    assert found.n_bytes == (1 + len(COST_PARTS)) * len(FLEET) * 4
    assert decision.lasting().n_own_bytes >= found.n_bytes
