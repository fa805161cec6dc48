"""Costs that a handler compared, in REST answers and in the report of `kvatlas explain`."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kvatlas.api.rest.decision_models import DecisionOut, ScoreResponse
from kvatlas.api.rest.explanation import explained, score_body
from kvatlas.app.cli.explain import print_decision
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.model import RequestView
from support.joint import joint
from support.rating import decide
from support.stages import FLEET


@pytest.fixture(scope="module")
def decision() -> Decision:
    """Return a decision for a decode server alone."""
    profile = joint(prefillTokensPerSecond=1000, decodeWeight=1, fit=False).profile
    fleet = [each for each in FLEET if each.name != "d0"]
    found = decide(profile, RequestView(model="m", now=0.0, n_tokens=9000), fleet)
    assert found.stages == ()
    return found


def test_answer_has_the_costs_of_what_was_compared(decision: Decision) -> None:
    placement = ScoreResponse.model_validate_json(score_body(decision)).placement

    assert placement is not None
    assert [(each.prefill, each.decode) for each in placement.options] == [(None, "d1"), ("p0", "d1")]
    for each in placement.options:
        assert each.total_ms == pytest.approx(sum(each.terms_ms.values()))
    alone, pair = (each.terms_ms for each in placement.options)
    assert alone["transfer"] == 0 < pair["transfer"]
    assert alone["prefill"] == pair["prefill"] > 9000


def test_report_compares_the_costs(decision: Decision) -> None:
    log = DecisionLog(max_count=1, max_bytes=2**20)
    log.add(decision, request_id="r", at=1.0)
    kept = log.get("r")
    assert kept is not None
    console = Console(file=io.StringIO(), width=200)
    print_decision(console, DecisionOut.model_validate_json(explained(kept).body))
    assert isinstance(console.file, io.StringIO)
    lines = [line.split() for line in console.file.getvalue().splitlines()]

    heading = next(line for line in lines if line[:2] == ["placement,", "ms"])
    assert heading[2:] == ["total", "overhead", "prefill", "transfer", "step", "decoding"]
    alone = next(line for line in lines if line[:2] == ["d1", "alone"])
    assert alone[-1] == "picked"
    pair = next(line for line in lines if line[:3] == ["p0", "->", "d1"])
    assert int(pair[3]) == pytest.approx(sum(map(int, pair[4:])), abs=3)
