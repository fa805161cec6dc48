"""Plugins that look at one endpoint at a time."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, Rating, RequestView
from kvatlas.scorers.core.one_by_one import FilterOfOne, ScorerOfOne
from kvatlas.scorers.core.profile import Profile
from support.candidates import endpoint
from support.rating import decide, judged, rated

REQUEST = RequestView(model="m", now=0.0)
FLEET = [endpoint("a", in_flight=(1, 0)), endpoint("b"), endpoint("c", in_flight=(3, 0))]


class Plain(ScorerOfOne):
    type = "plain"

    def rate_one(self, request: RequestView, candidate: Candidate) -> float:  # noqa: ARG002 (ScorerOfOne)
        return 1 / (1 + candidate.in_flight.requests)


class WithInputs(ScorerOfOne):
    type = "with-inputs"

    def rate_one(self, request: RequestView, candidate: Candidate) -> Rating | float:  # noqa: ARG002 (ScorerOfOne)
        n = candidate.in_flight.requests
        return Rating(raw=n or None, score=n / 4) if n < 3 else 0.5


class Busy(FilterOfOne):
    type = "busy"

    def judge_one(self, request: RequestView, candidate: Candidate) -> str | None:  # noqa: ARG002 (FilterOfOne)
        n = candidate.in_flight.requests
        return f"{n} requests" if n else None


@pytest.mark.parametrize(
    ("scorer", "ratings"),
    [
        pytest.param(Plain(), [(None, 0.5), (None, 1.0), (None, 0.25)], id="scores"),
        pytest.param(WithInputs(), [(1.0, 0.25), (None, 0.0), (None, 0.5)], id="some_with_inputs"),
    ],
)
def test_scorer_rates_every_endpoint(scorer: ScorerOfOne, ratings: list[tuple[float | None, float]]) -> None:
    assert [(each.raw, each.score) for each in rated(scorer, REQUEST, FLEET)] == ratings


def test_filter_judges_every_endpoint_and_its_reasons_are_kept() -> None:
    assert judged(Busy(), REQUEST, FLEET) == ["1 requests", None, "3 requests"]
    decision = decide(Profile([], MaxScorePicker(), [("busy", Busy())]), REQUEST, FLEET).lasting()
    assert {name: each.reason for name, each in decision.dropped.items()} == {
        "a": "1 requests",
        "c": "3 requests",
    }
