"""The report of `kvatlas explain`."""

from __future__ import annotations

import io
from random import Random

from rich.console import Console

from kvatlas.api.rest.decision_models import DecisionOut
from kvatlas.api.rest.explanation import explained
from kvatlas.app.cli.explain import print_decision
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from support.candidates import endpoint
from support.rating import decide


def report(model: str, n_endpoints: int) -> str:
    fleet = [endpoint(f"e{number:02}") for number in range(n_endpoints)]
    decision = decide(
        Profile([], MaxScorePicker()), RequestView(model=model, now=0.0), fleet, rng=Random(1).random
    )
    log = DecisionLog(max_count=1, max_bytes=10**6)
    log.add(decision, request_id="r", at=2.0)
    out = io.StringIO()
    print_decision(
        Console(file=out, width=400), DecisionOut.model_validate_json(explained(log.page(limit=1)[0]).body)
    )
    return out.getvalue()


def test_tie_of_a_large_fleet_names_the_first_endpoints() -> None:
    assert "e18, e19 and 10 more\n" in report("m", 30)


def test_title_says_so_when_a_request_names_no_model() -> None:
    assert report("", 1).splitlines()[1] == "no model, 0 tokens -> e00"
