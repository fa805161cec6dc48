"""Answers about decisions, which are written without their models, are what the models describe."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.rest.decision_models import DecisionOut, ScoredEndpointOut, ScoreResponse
from kvatlas.api.rest.explanation import explained, score_body
from kvatlas.routing.decision_log import DecisionLog
from kvatlas.scorers.core.decision import Decision, ScoredCandidate
from kvatlas.scorers.core.model import Candidate, RequestView
from support.candidates import endpoint, fleets, no_chance
from support.plans import planned, profile
from support.predicted import predicted
from support.rating import decide

PLAN = planned(
    "queue-scorer",
    "prefix-cache-scorer",
    "latency-cost-scorer",
    "lora-affinity-scorer",
    "decode-filter",
    "max-score-picker",
    **profile(
        "queue-scorer", "prefix-cache-scorer", "latency-cost-scorer", "lora-affinity-scorer", "decode-filter"
    ),
)


def expected(decision: Decision, scored: ScoredCandidate) -> dict[str, Any]:
    """Return what the answer must say of a candidate, from its objects."""
    candidate, dropped, load = scored.candidate, scored.dropped, scored.candidate.load
    match = candidate.prefix
    return {
        "name": candidate.name,
        "address": candidate.address,
        "total": scored.total,
        "filtered_by": dropped.by if dropped else None,
        "filter_reason": dropped.reason if dropped else None,
        "filters_passed": list(decision.filters_passed(dropped)),
        "trust": candidate.trust.value,
        "credit": candidate.credit,
        "load": load
        and {
            "waiting": load.waiting,
            "running": load.running,
            "kv_utilization": load.kv_utilization,
            "age_seconds": pytest.approx(load.age_s(decision.at), abs=1e-6),
        },
        "in_flight": {"requests": candidate.in_flight.requests, "tokens": candidate.in_flight.tokens},
        "prefix": match
        and {
            "rank": match.rank,
            "usable_tokens": match.usable_tokens,
            "predicted_tokens": match.predicted_blocks * match.block_size,
            "tier_tokens": {tier: n * match.block_size for tier, n in match.tier_blocks.items()},
            "runs": [{"tier": run.tier, "blocks": run.n_blocks} for run in match.runs],
        },
        "predicted": None,
        "scores": [
            {
                "name": term.name,
                "type": term.type,
                "raw": term.rating.raw,
                "score": term.rating.score,
                "weight": term.weight,
                "product": term.product,
                "age_seconds": None
                if term.rating.age_s is None
                else pytest.approx(term.rating.age_s, abs=1e-6),
                "parts_ms": None,
            }
            for term in scored.terms
        ],
    }


@given(fleet=fleets(min_size=1), n_tokens=st.integers(0, 10**5))
def test_answer_has_every_candidate_with_its_reasons(fleet: list[Candidate], n_tokens: int) -> None:
    view = RequestView(model="m", now=1000.0, n_tokens=n_tokens)
    decision = decide(PLAN.profile, view, fleet)

    answer = ScoreResponse.model_validate_json(score_body(decision))

    shown: list[ScoredEndpointOut] = answer.endpoints
    assert [each.model_dump() for each in shown] == [expected(decision, each) for each in decision.scored]
    assert (answer.picked, answer.tied) == (list(decision.picked), list(decision.tied))


def test_answer_has_the_predictions_of_each_candidate() -> None:
    table = predicted([endpoint("a"), endpoint("b")], [(100, 10), None], ttft_ms=200)
    decision = PLAN.profile.decide(RequestView(model="m", now=1000.0), table, rng=no_chance)

    for each in (decision, decision.lasting()):
        shown = ScoreResponse.model_validate_json(score_body(each)).endpoints
        assert [found.predicted.model_dump() if found.predicted else None for found in shown] == [
            {"ttft_ms": 100.0, "tpot_ms": 10.0, "ttft_headroom_ms": 100.0, "tpot_headroom_ms": -10.0},
            None,
        ]


@given(fleet=fleets(min_size=1))
def test_kept_decision_shows_what_the_decision_did_to_seven_digits(fleet: list[Candidate]) -> None:
    decision = decide(PLAN.profile, RequestView(model="m", now=1000.0, n_tokens=400), fleet)
    log = DecisionLog(max_count=1, max_bytes=10**6)
    log.add(decision, request_id="r", at=2.0)

    answer = explained(log.page(limit=1)[0]).body

    DecisionOut.model_validate_json(answer)
    now, later = msgspec.json.decode(score_body(decision)), msgspec.json.decode(answer)
    assert (now["picked"], now["tied"]) == (later["picked"], later["tied"])
    for before, after in zip(now["endpoints"], later["endpoints"], strict=True):
        assert before.keys() == after.keys()
        assert (before["total"], before["prefix"], before["trust"]) == (
            after["total"],
            after["prefix"],
            after["trust"],
        )
        for one, other in zip(before["scores"], after["scores"], strict=True):
            assert other["score"] == pytest.approx(one["score"], rel=1e-6, abs=1e-9)
            assert (one["raw"] is None) == (other["raw"] is None)
            assert other["raw"] is None or other["raw"] == pytest.approx(one["raw"], rel=1e-6, abs=1e-9)
