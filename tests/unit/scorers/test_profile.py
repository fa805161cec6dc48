"""Totals, terms and picks of a profile, and scorers that misbehave."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.errors import NoCandidatesError, ProfileError
from kvatlas.scorers.max_score import MaxScorePicker
from kvatlas.scorers.model import Candidate, Rating, Ratings, RequestView
from kvatlas.scorers.profile import Profile

REQUEST = RequestView(model="m", now=0.0, n_tokens=33)


class TableScorer:
    """Rates by a table of endpoint names."""

    type = "table-scorer"

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:  # noqa: ARG002 (Scorer)
        return [Rating(raw=self._scores[entry.name], score=self._scores[entry.name]) for entry in candidates]


Answer = Callable[[Sequence[Candidate]], Ratings]


class FaultyScorer:
    """Answers whatever `answer` answers."""

    type = "faulty-scorer"

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:  # noqa: ARG002 (Scorer)
        return self._answer(candidates)


def candidates(*names: str) -> list[Candidate]:
    return [Candidate(name=name, address=f"{name}:8000") for name in names]


def no_chance() -> float:
    return 0.0


def test_total_is_the_undivided_weighted_sum() -> None:
    profile = Profile(
        [
            ("first", TableScorer({"a": 0.5, "b": 1.0}), 2.0),
            ("second", TableScorer({"a": 1.0, "b": 0.25}), 3.0),
        ],
        MaxScorePicker(),
    )

    decision = profile.decide(REQUEST, candidates("a", "b"), rng=no_chance)

    assert [entry.total for entry in decision.scored] == [2.0 * 0.5 + 3.0 * 1.0, 2.0 * 1.0 + 3.0 * 0.25]
    assert [(term.name, term.type, term.weight, term.product) for term in decision.scored[0].terms] == [
        ("first", "table-scorer", 2.0, 1.0),
        ("second", "table-scorer", 3.0, 3.0),
    ]
    assert (decision.model, decision.n_tokens) == ("m", 33)
    assert (decision.picked, decision.tie, decision.faults) == (("a",), False, ())


def test_decision_keeps_the_order_of_the_fleet_and_picks_best_first() -> None:
    profile = Profile([("table", TableScorer({"a": 0.1, "b": 0.9, "c": 0.5}), 1.0)], MaxScorePicker())

    decision = profile.decide(REQUEST, candidates("a", "b", "c"), rng=no_chance, count=2)

    assert [entry.candidate.name for entry in decision.scored] == ["a", "b", "c"]
    assert decision.picked == ("b", "c")


def test_profile_without_scorers_picks_at_random() -> None:
    decision = Profile([], MaxScorePicker()).decide(REQUEST, candidates("a", "b"), rng=no_chance)

    assert [(entry.total, entry.terms) for entry in decision.scored] == [(0.0, ()), (0.0, ())]
    assert decision.tie


def raising(_: Sequence[Candidate]) -> Ratings:
    raise ValueError("first line\nsecond line")


def no_sequence(_: Sequence[Candidate]) -> Ratings:
    return cast("Ratings", None)


def no_ratings(_: Sequence[Candidate]) -> Ratings:
    return cast("Ratings", ["high", "low"])


def answering(*scores: float) -> Answer:
    return lambda _: [Rating(raw=None, score=score) for score in scores]


@pytest.mark.parametrize(
    ("answer", "reason", "detail", "scores"),
    [
        pytest.param(
            raising, "raised", "ValueError: first line second line (test_profile.py:", (0.0, 0.0), id="raises"
        ),
        pytest.param(no_sequence, "raised", "TypeError: 'NoneType'", (0.0, 0.0), id="no_sequence"),
        pytest.param(no_ratings, "raised", "AttributeError: 'str'", (0.0, 0.0), id="no_ratings"),
        pytest.param(answering(1.0), "wrong_length", "rated 1 endpoints, want 2", (0.0, 0.0), id="short"),
        pytest.param(
            answering(math.nan, 0.5),
            "not_finite",
            "1 of 2 scores are not finite, taken as 0",
            (0.0, 0.5),
            id="nan",
        ),
        pytest.param(
            answering(math.inf, 7.0),
            "not_finite",
            "1 of 2 scores are not finite, taken as 0",
            (0.0, 1.0),
            id="inf_beside_out_of_range",
        ),
        pytest.param(
            answering(1.5, -0.5),
            "out_of_range",
            "2 of 2 scores outside [0, 1], clamped",
            (1.0, 0.0),
            id="out_of_range",
        ),
    ],
)
def test_faulty_scorer_is_repaired_and_named(
    answer: Answer, reason: str, detail: str, scores: tuple[float, float]
) -> None:
    profile = Profile(
        [("faulty", FaultyScorer(answer), 10.0), ("good", TableScorer({"a": 0.25, "b": 0.75}), 1.0)],
        MaxScorePicker(),
    )

    decision = profile.decide(REQUEST, candidates("a", "b"), rng=no_chance)

    (fault,) = decision.faults
    assert (fault.name, fault.reason) == ("faulty", reason)
    assert fault.detail.startswith(detail)
    assert tuple(entry.terms[0].rating.score for entry in decision.scored) == scores
    assert [entry.total for entry in decision.scored] == [10.0 * scores[0] + 0.25, 10.0 * scores[1] + 0.75]


def test_deciding_without_candidates_raises() -> None:
    with pytest.raises(NoCandidatesError, match="no endpoint to score for model 'm'"):
        Profile([], MaxScorePicker()).decide(REQUEST, [], rng=no_chance)


def test_deciding_with_impossible_count_raises() -> None:
    with pytest.raises(ProfileError, match="count is 0, want at least 1"):
        Profile([], MaxScorePicker()).decide(REQUEST, candidates("a"), rng=no_chance, count=0)


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_impossible_weight_raises(weight: float) -> None:
    with pytest.raises(ProfileError, match="weight of scorer 'table'"):
        Profile([("table", TableScorer({}), weight)], MaxScorePicker())


def test_scorer_name_used_twice_raises() -> None:
    with pytest.raises(ProfileError, match="'table' is in the profile twice"):
        Profile([("table", TableScorer({}), 1.0), ("table", TableScorer({}), 1.0)], MaxScorePicker())


SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1), min_size=1)


@given(scores=SCORES, idle=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_weight_zero_equals_absent(scores: dict[str, float], idle: float, seed: int) -> None:
    fleet = candidates(*scores)
    used = ("used", TableScorer(scores), 1.5)
    idle_scorer = ("idle", TableScorer(dict.fromkeys(scores, idle)), 0.0)

    without = Profile([used], MaxScorePicker()).decide(
        REQUEST, fleet, rng=random.Random(seed).random, count=3
    )
    beside = Profile([idle_scorer, used], MaxScorePicker()).decide(
        REQUEST, fleet, rng=random.Random(seed).random, count=3
    )

    assert [entry.total for entry in beside.scored] == [entry.total for entry in without.scored]
    assert (beside.picked, beside.tie) == (without.picked, without.tie)


@given(scores=SCORES, seed=st.integers(0, 2**32), data=st.data())
def test_totals_ignore_the_order_of_the_fleet(
    scores: dict[str, float], seed: int, data: st.DataObject
) -> None:
    profile = Profile([("table", TableScorer(scores), 2.0)], MaxScorePicker())
    shuffled = data.draw(st.permutations(sorted(scores)))

    first = profile.decide(REQUEST, candidates(*sorted(scores)), rng=random.Random(seed).random)
    second = profile.decide(REQUEST, candidates(*shuffled), rng=random.Random(seed).random)

    totals = {entry.candidate.name: entry.total for entry in first.scored}
    assert {entry.candidate.name: entry.total for entry in second.scored} == totals
    assert totals[first.picked[0]] == totals[second.picked[0]] == max(totals.values())
