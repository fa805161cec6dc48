"""Plugins with callbacks for picks, times and response headers, and plugins whose callbacks raise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.ratings import Ratings
from kvatlas.scorers.load_aware import LoadAwareScorer
from support.candidates import endpoint, no_chance
from support.rating import decide

REQUEST = RequestView(model="m", now=0.0)


def failing() -> object:
    raise RuntimeError("no luck")


class Learner:
    """Scorer that records its callbacks."""

    type = "learner"

    def __init__(self, headers: Callable[[], object] = lambda: {"x-seen": "1"}) -> None:
        self.told: list[object] = []
        self._headers = headers

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        return Ratings(np.ones(len(candidates)))

    def picked(self, request: RequestView, decision: Decision) -> None:
        self.told.append((request.now, decision.picked))

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        self.told.append((decision.picked, ttft_s))

    def response_headers(self, decision: Decision) -> Mapping[str, str]:  # noqa: ARG002 (MarksResponses)
        return cast("Mapping[str, str]", self._headers())


class FailingLearner(Learner):
    """Scorer whose callbacks all raise."""

    def picked(self, request: RequestView, decision: Decision) -> None:
        raise RuntimeError(f"picked {decision.picked} at {request.now}")

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        raise RuntimeError(f"answered {decision.picked} after {ttft_s}")


def test_callbacks_are_called_and_a_failing_one_is_a_named_fault() -> None:
    learner = Learner()
    profile = Profile(
        [("fails", FailingLearner(), 1.0), ("learns", learner, 1.0), ("deaf", LoadAwareScorer(1), 1.0)],
        MaxScorePicker(),
    )
    decision = decide(profile, REQUEST, [endpoint("a")], rng=no_chance)

    faults = (*profile.picked(REQUEST, decision), *profile.answered(decision, ttft_s=0.5))

    assert learner.told == [(0.0, ("a",)), (("a",), 0.5)]
    assert [(fault.name, fault.reason, fault.detail.split("(")[0]) for fault in faults] == [
        ("fails", "raised", "RuntimeError: picked "),
        ("fails", "raised", "RuntimeError: answered "),
    ]


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        pytest.param(failing, "raised", id="raises"),
        pytest.param(lambda: None, "raised", id="no_mapping"),
        pytest.param(lambda: {"x-number": 1}, "wrong_answer", id="no_text"),
        pytest.param(lambda: {"x-split": "a\r\nb"}, "wrong_answer", id="line_break"),
        pytest.param(lambda: {"x-é": "a"}, "wrong_answer", id="not_ascii"),
        pytest.param(lambda: {"": "a"}, "wrong_answer", id="no_name"),
        pytest.param(lambda: {"x y": "a"}, "wrong_answer", id="space_in_the_name"),
        pytest.param(lambda: {":status": "200"}, "wrong_answer", id="pseudo_header"),
        pytest.param(lambda: {1: "a"}, "wrong_answer", id="name_is_no_text"),
    ],
)
def test_invalid_response_headers_are_dropped_and_named(headers: Callable[[], object], reason: str) -> None:
    profile = Profile([("bad", Learner(headers), 1.0), ("good", Learner(), 1.0)], MaxScorePicker())
    decision = decide(profile, REQUEST, [endpoint("a")], rng=no_chance)

    marked, faults = profile.response_headers(decision)

    assert marked == {"x-seen": "1"}
    assert [(fault.name, fault.reason) for fault in faults] == [("bad", reason)]
