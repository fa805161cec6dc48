"""Answers about decisions with stages: REST models, and the report of `kvatlas explain`."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
from rich.console import Console

from kvatlas.api.rest.decision_models import DecisionOut, ScoreResponse
from kvatlas.api.rest.explanation import explained, score_body, summary
from kvatlas.api.rest.frame import live_decision
from kvatlas.app.cli.explain import print_decision
from kvatlas.routing.decision_log import DecisionLog, KeptDecision, size_bytes
from kvatlas.scorers.core.model import Candidate, RequestView
from support.rating import decide
from support.stages import ALWAYS, FLEET, server, staged

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)


def kept(fleet: Sequence[Candidate] = FLEET) -> KeptDecision:
    """Return the kept decision on a request that wants a prefill stage."""
    decision = decide(staged(ALWAYS, deciders={"prefill": ALWAYS}).profile, REQUEST, fleet)
    log = DecisionLog(max_count=1, max_bytes=2**20)
    log.add(decision, request_id="r", at=1.0)
    found = log.get("r")
    assert found is not None
    return found


def report(decision: KeptDecision) -> str:
    console = Console(file=io.StringIO(), width=200)
    print_decision(console, DecisionOut.model_validate_json(explained(decision).body))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_answer_has_the_candidates_of_every_stage() -> None:
    placement = ScoreResponse.model_validate_json(score_body(kept().decision)).placement

    assert placement is not None
    assert (placement.kind, placement.profile, placement.lacking) == ("prefill-decode", "decode", None)
    assert placement.headers == {"x-prefiller-host-port": "p0:8000"}
    (stage,) = placement.stages
    assert (stage.name, stage.profile, stage.picked) == ("prefill", "prefill", ["p0"])
    assert {each.name: each.filtered_by for each in stage.endpoints} == {
        "d0": "prefill-filter",
        "d1": "prefill-filter",
        "p0": None,
        "p1": None,
        "e0": "prefill-filter",
    }


def test_line_of_a_list_names_the_stages() -> None:
    line = summary(kept())

    assert (line.picked, line.placement, line.stages) == (["d1"], "prefill-decode", {"prefill": ["p0"]})


def test_answer_without_a_handler_has_no_placement() -> None:
    decision = decide(staged(handler="single-profile-handler", names=("any",)).profile, REQUEST, FLEET)

    assert msgspec.json.decode(score_body(decision))["placement"] is None


def test_report_shows_every_stage() -> None:
    text = report(kept())

    assert "-> d1" in text
    assert "prefill, profile prefill -> p0" in text
    assert text.count("picked") == 2


def test_cached_tokens_are_those_of_the_server_that_computes_the_prompt() -> None:
    fleet = (server("d", "decode", cached=2), server("p", "prefill", cached=7))
    found = kept(fleet)

    assert summary(found).usable_tokens == 112
    assert "160 tokens, 112 of them cached on p, which computes it -> d" in report(found)


def test_live_frame_has_the_reason_of_every_stage() -> None:
    live = live_decision(kept())

    (stage,) = live.stage_reasons
    assert (stage.name, stage.picked, stage.tie) == ("prefill", ["p0"], False)
    assert [each.name for each in stage.terms] == ["queue-scorer"]
    assert stage.rival is not None
    assert (stage.rival.name, stage.total > stage.rival.total) == ("p1", True)
    assert live.lacking is None


def test_live_frame_says_what_is_lacking() -> None:
    assert live_decision(kept(FLEET[:2])).lacking == "prefill"


def test_report_says_what_is_lacking() -> None:
    assert "no server can do the stage prefill" in report(kept(FLEET[:2]))


def test_stages_count_in_the_memory_of_a_kept_decision() -> None:
    with_stage, without = kept().decision, kept(FLEET[:2]).decision

    assert with_stage.n_bytes > without.n_bytes
    assert size_bytes(with_stage) > with_stage.n_bytes
