"""Decisions as frames show them."""

from __future__ import annotations

from kvatlas.api.rest.frame import live_decision
from kvatlas.fleet.audit import Audited, Verdict
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.filters.roles import decode_filter
from support.candidates import endpoint, no_chance
from support.decisions import Column, decided
from support.rating import decide

PREFILL = {"llm-d.ai/role": "prefill"}


def shown(decision: Decision, audited: Audited | None = None) -> dict[str, object]:
    log = DecisionLog(max_count=1, max_bytes=10**6)
    log.add(decision, request_id="r", at=0.0)
    (kept,) = log.page(limit=1)
    kept.audited = audited
    return live_decision(kept).model_dump()


def test_decision_is_shown_beside_the_best_of_the_others() -> None:
    found = shown(decided([[0.5, 1.0], [0.25, 1.0], [0.5, 0.5]], [2, 1]))

    assert found["picked"] == ["e0"]
    assert found["terms"] == [{"name": "s0", "product": 1.0}, {"name": "s1", "product": 1.0}]
    assert found["rival"] == {
        "name": "e1",
        "total": 1.5,
        "terms": [{"name": "s0", "product": 0.5}, {"name": "s1", "product": 1.0}],
    }
    assert (found["dropped"], found["verdict"]) == (0, None)


def test_audit_of_a_decision_is_shown() -> None:
    audited = Audited("e0", Verdict.EVICTED, "gpu", {"gpu": 64}, {"gpu": 0})

    assert shown(decided([[1.0]], [1]), audited)["verdict"] == "evicted"


def test_decision_has_no_rival_when_filters_dropped_the_others() -> None:
    scorers = [("s0", Column([0.0, 1.0]), 1.0)]
    profile = Profile(scorers, MaxScorePicker(), [("roles", decode_filter())])
    some = [endpoint("e0"), endpoint("e1", labels=PREFILL)]
    nobody = [endpoint("e0", labels=PREFILL)]
    view = RequestView(model="m", now=0.0)

    alone = shown(decide(profile, view, some, rng=no_chance))
    dropped = shown(decide(profile, view, nobody, rng=no_chance))

    assert (alone["picked"], alone["rival"], alone["dropped"]) == (["e0"], None, 1)
    assert (dropped["picked"], dropped["rival"], dropped["terms"], dropped["total"]) == ([], None, [], None)
