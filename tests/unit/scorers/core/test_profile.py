"""Filters, totals, terms and picks of a profile, and plugins with invalid results."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.base import Filter, Picker, Rng, Scorer
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.columns import FloatArray, Mask
from kvatlas.scorers.core.drops import Dropped
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.ratings import Inputs, Ratings, Verdicts
from kvatlas.scorers.errors import NoCandidatesError, ProfileError
from support.built import built
from support.candidates import REQUESTS, TIERS, fleets, no_chance
from support.rating import decide

REQUEST = RequestView(model="m", now=0.0, n_tokens=33)


class TableScorer:
    """Scorer that rates by a table of endpoint names."""

    type = "table-scorer"

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        return Ratings(np.array([self._scores[name] for name in candidates.names]))


Answer = Callable[[Candidates], object]


class Faulty:
    """Scorer and filter that returns the result of `answer`."""

    type = "faulty"

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        return cast("Ratings", self._answer(candidates))

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        return cast("Verdicts", self._answer(candidates))


class NameFilter:
    """Filter that keeps the named endpoints."""

    type = "name-filter"

    def __init__(self, names: str) -> None:
        self._names = names

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        keep = np.array([name in self._names for name in candidates.names])
        return Verdicts(keep, lambda dropped: [f"not in {self._names!r}"] * len(dropped))


class FixedPicker:
    """Picker with a given result."""

    type = "fixed-picker"

    def __init__(self, answer: Callable[[], object]) -> None:
        self._answer = answer

    def pick(self, totals: FloatArray, *, rng: Rng) -> tuple[Sequence[int], bool]:  # noqa: ARG002 (Picker)
        return cast("tuple[list[int], bool]", self._answer())


def candidates(*names: str) -> list[Candidate]:
    return [Candidate(name=name, address=f"{name}:8000") for name in names]


def test_total_is_the_undivided_weighted_sum() -> None:
    profile = Profile(
        [
            ("first", TableScorer({"a": 0.5, "b": 1.0}), 2.0),
            ("second", TableScorer({"a": 1.0, "b": 0.25}), 3.0),
        ],
        MaxScorePicker(),
    )

    decision = decide(profile, REQUEST, candidates("a", "b"), rng=no_chance)

    assert [entry.total for entry in decision.scored] == [2.0 * 0.5 + 3.0 * 1.0, 2.0 * 1.0 + 3.0 * 0.25]
    assert [(term.name, term.type, term.weight, term.product) for term in decision.scored[0].terms] == [
        ("first", "table-scorer", 2.0, 1.0),
        ("second", "table-scorer", 3.0, 3.0),
    ]
    assert (decision.model, decision.n_tokens) == ("m", 33)
    assert (decision.picked, decision.tie, decision.faults) == (("a",), False, ())


def test_best_raises_when_no_endpoint_is_picked() -> None:
    decision = decide(Profile([], MaxScorePicker(), [("none", NameFilter(""))]), REQUEST, candidates("a"))

    with pytest.raises(LookupError, match="no endpoint is picked"):
        _ = decision.best


def test_decision_keeps_the_order_of_the_fleet_and_picks_best_first() -> None:
    profile = Profile([("table", TableScorer({"a": 0.1, "b": 0.9, "c": 0.5}), 1.0)], MaxScorePicker(2))

    decision = decide(profile, REQUEST, candidates("a", "b", "c"), rng=no_chance)

    assert [entry.candidate.name for entry in decision.scored] == ["a", "b", "c"]
    assert decision.picked == ("b", "c")
    assert decision.first.candidate.name == "b"
    assert decision.runner_up == decision.scored[2]


def test_profile_without_scorers_picks_at_random() -> None:
    decision = decide(Profile([], MaxScorePicker()), REQUEST, candidates("a", "b"), rng=no_chance)

    assert [(entry.total, entry.terms) for entry in decision.scored] == [(0.0, ()), (0.0, ())]
    assert decision.tie


def test_filters_run_in_order_and_dropped_candidates_are_not_scored() -> None:
    profile = Profile(
        [("table", TableScorer({"b": 0.5, "c": 1.0}), 1.0)],
        MaxScorePicker(),
        [("first", NameFilter("bc")), ("second", NameFilter("abd"))],
    )

    decision = decide(profile, REQUEST, candidates("a", "b", "c"), rng=no_chance)

    assert [(each.candidate.name, each.dropped, len(each.terms)) for each in decision.scored] == [
        ("a", Dropped("first", "not in 'bc'"), 0),
        ("b", None, 1),
        ("c", Dropped("second", "not in 'abd'"), 0),
    ]
    assert decision.picked == ("b",)


def test_no_endpoint_is_picked_when_filters_drop_all() -> None:
    profile = Profile(
        [("table", TableScorer({}), 1.0)],
        MaxScorePicker(),
        [("first", NameFilter("")), ("second", Faulty(raising))],
    )

    decision = decide(profile, REQUEST, candidates("a", "b"), rng=no_chance)

    assert (decision.picked, decision.tie, decision.faults) == ((), False, ())
    assert {each.dropped for each in decision.scored} == {Dropped("first", "not in ''")}


def raising(_: Candidates) -> object:
    raise ValueError("first line\nsecond line")


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("without a message")


def raising_mute(_: Candidates) -> object:
    raise MuteError


def nothing(_: Candidates) -> object:
    return None


def words(_: Candidates) -> object:
    return ["high", "low"]


def one_verdict(_: Candidates) -> object:
    return Verdicts(np.array([True]), lambda _: [])


def numbers(_: Candidates) -> object:
    return Verdicts(cast("Mask", np.array([1.0, 0.0])), lambda _: [""])


def answering(*scores: float) -> Answer:
    return lambda _: Ratings(np.array(scores))


def short_inputs(_: Candidates) -> object:
    return Ratings(np.array([0.5, 0.5]), Inputs(np.array([1.0])))


@pytest.mark.parametrize(
    ("answer", "reason", "detail", "scores"),
    [
        pytest.param(
            raising, "raised", "ValueError: first line second line (test_profile.py:", (0.0, 0.0), id="raises"
        ),
        pytest.param(
            raising_mute, "raised", "MuteError: without a readable message", (0.0, 0.0), id="raises_mute"
        ),
        pytest.param(nothing, "raised", "AttributeError: 'NoneType'", (0.0, 0.0), id="nothing"),
        pytest.param(words, "raised", "AttributeError: 'list'", (0.0, 0.0), id="no_ratings"),
        pytest.param(
            short_inputs, "wrong_length", "rated 2 endpoints, want 2", (0.0, 0.0), id="short_inputs"
        ),
        pytest.param(answering(1.0), "wrong_length", "rated 1 endpoints, want 2", (0.0, 0.0), id="short"),
        pytest.param(
            answering(1.0, 1.0, 1.0), "wrong_length", "rated 3 endpoints, want 2", (0.0, 0.0), id="long"
        ),
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
        [("faulty", Faulty(answer), 10.0), ("good", TableScorer({"a": 0.25, "b": 0.75}), 1.0)],
        MaxScorePicker(),
    )

    decision = decide(profile, REQUEST, candidates("a", "b"), rng=no_chance)

    (fault,) = decision.faults
    assert (fault.name, fault.reason) == ("faulty", reason)
    assert fault.detail.startswith(detail)
    assert tuple(entry.terms[0].rating.score for entry in decision.scored) == scores
    assert [entry.total for entry in decision.scored] == [10.0 * scores[0] + 0.25, 10.0 * scores[1] + 0.75]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(raising, "raised", id="raises"),
        pytest.param(nothing, "raised", id="nothing"),
        pytest.param(one_verdict, "wrong_length", id="short"),
        pytest.param(numbers, "wrong_answer", id="no_mask"),
    ],
)
def test_faulty_filter_keeps_every_candidate_and_is_named(answer: Answer, reason: str) -> None:
    profile = Profile([], MaxScorePicker(), [("faulty", Faulty(answer)), ("good", NameFilter("b"))])

    decision = decide(profile, REQUEST, candidates("a", "b"), rng=no_chance)

    assert [(fault.name, fault.reason) for fault in decision.faults] == [("faulty", reason)]
    assert decision.picked == ("b",)


def picker_fails() -> object:
    raise RuntimeError("no luck")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        pytest.param(picker_fails, "raised", id="raises"),
        pytest.param(lambda: None, "raised", id="no_pair"),
        pytest.param(lambda: (list[int](), False), "wrong_answer", id="nobody"),
        pytest.param(lambda: ([2], False), "wrong_answer", id="unknown_endpoint"),
        pytest.param(lambda: ([-1], False), "wrong_answer", id="negative"),
        pytest.param(lambda: ([0, 0], False), "wrong_answer", id="one_twice"),
        pytest.param(lambda: (["a"], False), "wrong_answer", id="names"),
    ],
)
def test_faulty_picker_falls_back_to_the_highest_total_and_is_named(
    answer: Callable[[], object], reason: str
) -> None:
    profile = Profile([("table", TableScorer({"a": 0.1, "b": 0.9}), 1.0)], FixedPicker(answer))

    decision = decide(profile, REQUEST, candidates("a", "b"), rng=no_chance)

    assert [(fault.name, fault.reason) for fault in decision.faults] == [("fixed-picker", reason)]
    assert decision.picked == ("b",)


def test_deciding_without_candidates_raises() -> None:
    with pytest.raises(NoCandidatesError, match="no endpoint to score for model 'm'"):
        decide(Profile([], MaxScorePicker()), REQUEST, [], rng=no_chance)


@pytest.mark.parametrize("weight", [-math.inf, math.nan, math.inf])
def test_impossible_weight_raises(weight: float) -> None:
    with pytest.raises(ProfileError, match="weight of scorer 'table'"):
        Profile([("table", TableScorer({}), weight)], MaxScorePicker())


def test_name_used_twice_raises() -> None:
    with pytest.raises(ProfileError, match="scorer 'table' is in the profile twice"):
        Profile([("table", TableScorer({}), 1.0), ("table", TableScorer({}), 1.0)], MaxScorePicker())
    with pytest.raises(ProfileError, match="filter 'names' is in the profile twice"):
        Profile([], MaxScorePicker(), [("names", NameFilter("")), ("names", NameFilter(""))])


SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(0, 1), min_size=1)


@given(scores=SCORES, idle=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_weight_zero_equals_absent(scores: dict[str, float], idle: float, seed: int) -> None:
    fleet = candidates(*scores)
    used = ("used", TableScorer(scores), 1.5)
    idle_scorer = ("idle", TableScorer(dict.fromkeys(scores, idle)), 0.0)

    without = decide(Profile([used], MaxScorePicker(3)), REQUEST, fleet, rng=random.Random(seed).random)
    beside = decide(
        Profile([idle_scorer, used], MaxScorePicker(3)), REQUEST, fleet, rng=random.Random(seed).random
    )

    assert [entry.total for entry in beside.scored] == [entry.total for entry in without.scored]
    assert (beside.picked, beside.tie) == (without.picked, without.tie)


LEFT_OUT = frozenset(
    "utilization-filter by-label endpoint-attribute-filter endpoint-attribute-scorer header-label-affinity-scorer"
    " header-based-testing-filter".split()
)
"""Plugins with required parameters, and one that drops all."""


def whole_profile() -> Profile:
    """Return every scorer and filter without required parameters, so that all get the same input."""
    registry, context = builtin_registry(), BuildContext(tiers=TIERS, predictor="predictor")
    scorers: list[tuple[str, Scorer, float]] = [
        (name, built(registry.scorers, name, {}, context), 1.0)
        for name in registry.scorers
        if name not in LEFT_OUT
    ]
    filters: list[tuple[str, Filter]] = [
        (name, built(registry.filters, name, {}, context))
        for name in registry.filters
        if name not in LEFT_OUT
    ]
    picker: Picker = MaxScorePicker()
    return Profile(scorers, picker, filters)


@given(request=REQUESTS, fleet=fleets(min_size=1), data=st.data())
def test_decision_ignores_the_order_of_the_fleet(
    request: RequestView, fleet: list[Candidate], data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(fleet))

    first = decide(whole_profile(), request, fleet, rng=no_chance)
    second = decide(whole_profile(), request, shuffled, rng=no_chance)

    totals = {entry.candidate.name: (entry.total, entry.dropped) for entry in first.scored}
    assert {entry.candidate.name: (entry.total, entry.dropped) for entry in second.scored} == totals
    assert [entry.candidate.name for entry in second.scored] == [each.name for each in shuffled]
    assert first.faults == second.faults == ()
    best = max((total for total, dropped in totals.values() if dropped is None), default=None)
    assert [totals[name][0] for name in (*first.picked, *second.picked)] == [best] * len(
        (*first.picked, *second.picked)
    )
