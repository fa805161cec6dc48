"""What a profile does before its filters: predictions, and admitters that refuse."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest

from kvatlas.scorers.core.base import Admitter, Predictor, Rng
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.drops import Denied, Dropped
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.predictions import Predictions
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.ratings import Ratings, Verdicts
from kvatlas.scorers.errors import ProfileError
from support.candidates import endpoint
from support.rating import decide

REQUEST = RequestView(model="m", now=0.0)
FLEET = [endpoint(name) for name in "abc"]


class Door:
    """An admitter with one answer, which counts its calls."""

    type = "door"

    def __init__(self, answer: object) -> None:
        self.answer, self.n_calls = answer, 0

    def admit(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> str | None:  # noqa: ARG002 (Admitter)
        self.n_calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return cast("str | None", self.answer)


class Oracle:
    """A predictor of 100, 200, ... ms to the first token, which notes the ends of requests."""

    type = "oracle"

    def __init__(self, n_rows: int | None = None) -> None:
        self.n_rows, self.ends = n_rows, list[float | None]()

    def predict(self, request: RequestView, candidates: Candidates) -> Predictions | None:  # noqa: ARG002 (Predictor)
        n = self.n_rows or len(candidates)
        return Predictions(np.outer([1.0, np.nan, -1.0, 0.0], 100.0 * np.arange(1, n + 1)))

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:  # noqa: ARG002 (LearnsFromEnds)
        self.ends.append(tpot_s)


class Reader:
    """A filter that drops the endpoint of 200 ms, and a scorer that prefers the slowest."""

    type = "reader"

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        assert candidates.predictions is not None
        return Verdicts(candidates.predictions.ttft_ms != 200.0, lambda dropped: [""] * len(dropped))

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        assert candidates.predictions is not None
        return Ratings(candidates.predictions.ttft_ms / 1000.0)


def profile(*admitters: Door, predictor: Predictor | None = None, reads: bool = False) -> Profile:
    reader = Reader()
    return Profile(
        [("reader", reader, 1.0)] if reads else [],
        MaxScorePicker(),
        [("filter", reader)] if reads else [],
        admitters=[(f"door{number}", cast("Admitter", each)) for number, each in enumerate(admitters)],
        predictor=("oracle", predictor) if predictor is not None else None,
    )


def test_first_refusal_ends_the_decision_and_is_its_reason_everywhere() -> None:
    doors = [Door(None), Door("full"), Door("never asked")]

    decision = decide(profile(*doors), REQUEST, FLEET)

    assert [each.n_calls for each in doors] == [1, 1, 0]
    assert (decision.denied, decision.picked, decision.faults) == (Denied("door1", "full"), (), ())
    assert decision.dropped == dict.fromkeys("abc", Dropped("door1", "full"))
    assert decision.lasting().dropped == decision.dropped
    assert decision.filters_passed(decision.dropped["a"]) == ("door0",)


def test_admitted_request_is_decided_as_without_admitters() -> None:
    decision = decide(profile(Door(None)), REQUEST, FLEET)

    assert (decision.denied, len(decision.picked), decision.filters) == (None, 1, ("door0",))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [pytest.param(ValueError("x"), "raised", id="raises"), pytest.param(7, "wrong_answer", id="no_text")],
)
def test_faulty_admitter_admits_and_is_named(answer: object, reason: str) -> None:
    decision = decide(profile(Door(answer)), REQUEST, FLEET)

    assert len(decision.picked) == 1
    assert [(fault.name, fault.reason) for fault in decision.faults] == [("door0", reason)]


def test_plugins_read_the_predictions_of_the_candidates_that_are_left() -> None:
    decision = decide(profile(predictor=Oracle(), reads=True), REQUEST, FLEET)

    assert (decision.picked, decision.faults) == (("c",), ())
    assert decision.scores.tolist() == [[0.1, 0.3]]


def test_kept_decision_has_the_predictions() -> None:
    predictions = decide(profile(predictor=Oracle()), REQUEST, FLEET).lasting().candidates.predictions

    assert predictions is not None
    assert predictions.ttft_ms.tolist() == [100.0, 200.0, 300.0]
    assert predictions.is_known.tolist() == [True] * 3
    assert np.isnan(predictions.tpot_ms).all()


def test_faulty_predictor_predicts_nothing_and_is_named() -> None:
    decision = decide(profile(predictor=Oracle(n_rows=2)), REQUEST, FLEET)

    assert decision.candidates.predictions is None
    assert [(fault.name, fault.reason) for fault in decision.faults] == [("oracle", "wrong_length")]


def test_predictor_with_another_answer_than_predictions_is_named() -> None:
    oracle = Oracle()
    oracle.predict = lambda request, candidates: [1.0] * len(candidates)  # type: ignore[method-assign,assignment,return-value] # noqa: ARG005

    decision = decide(profile(predictor=oracle), REQUEST, FLEET)

    assert decision.picked
    assert [(fault.name, fault.reason) for fault in decision.faults] == [("oracle", "wrong_answer")]


def test_predictor_learns_from_ends_of_requests() -> None:
    oracle = Oracle()
    whole = profile(predictor=oracle)
    decision = decide(whole, REQUEST, FLEET)

    assert (*whole.ended(decision, tpot_s=0.02), *whole.ended(decision, tpot_s=None)) == ()
    assert oracle.ends == [0.02, None]


def test_admitters_of_one_name_raise() -> None:
    doors: list[Any] = [("door", Door(None)), ("door", Door(None))]
    with pytest.raises(ProfileError, match="admitter 'door' is in the profile twice"):
        Profile([], MaxScorePicker(), admitters=doors)
