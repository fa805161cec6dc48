"""The smallest change of one weight that changes the pick, against brute force in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvatlas.scorers.core.counterfactual import leaders, smallest_change
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.filters.roles import decode_filter
from kvatlas.scorers.pickers.random_choice import RandomPicker
from support.candidates import endpoint, no_chance
from support.decisions import Column, Rows, decided
from support.rating import decide

EIGHTHS = st.integers(0, 8).map(lambda n: n / 8)
ANY = st.floats(0, 1)


@st.composite
def tables(draw: st.DrawFn, scores: st.SearchStrategy[float]) -> tuple[Rows, list[float]]:
    n_scorers = draw(st.integers(1, 3))
    row = st.lists(scores, min_size=n_scorers, max_size=n_scorers)
    weights = st.lists(st.integers(-8, 12).map(lambda n: n / 4), min_size=n_scorers, max_size=n_scorers)
    return draw(st.lists(row, min_size=1, max_size=4)), draw(weights)


def exact_totals(rows: Rows, weights: list[Fraction]) -> list[Fraction]:
    return [sum((w * Fraction(s) for w, s in zip(weights, row, strict=True)), Fraction(0)) for row in rows]


def nearest_crossing(rows: Rows, weights: list[float], picked: int) -> Fraction | None:
    """Return the least change of one weight, to 0 or more, after which another leads, by trying every tie of two totals."""
    exact = [Fraction(weight) for weight in weights]
    totals = exact_totals(rows, exact)
    changes: list[Fraction] = []
    for term, weight in enumerate(exact):
        for row, total in zip(rows, totals, strict=True):
            gain = Fraction(row[term]) - Fraction(rows[picked][term])
            if gain:
                change = (totals[picked] - total) / gain
                if weight + change > 0 or gain > 0:
                    changes.append(abs(max(weight + change, Fraction(0)) - weight))
    return min(changes, default=None)


@given(table=tables(EIGHTHS))
def test_change_is_the_smallest_of_all_and_changes_the_pick(table: tuple[Rows, list[float]]) -> None:
    rows, weights = table
    decision = decided(rows, weights)
    picked = int(decision.picked[0][1:])
    smallest = nearest_crossing(rows, weights, picked)

    change = smallest_change(decision)

    if change is None:
        assert smallest is None
        return
    assert smallest is not None
    number = int(change.scorer[1:])
    assert change.weight == weights[number]
    assert abs(abs(Fraction(change.new_weight) - Fraction(change.weight)) - smallest) < Fraction(1, 10**12)
    again = decided(rows, [*weights[:number], change.new_weight, *weights[number + 1 :]])
    assert decision.picked[0] not in again.tied
    assert change.picks == again.tied
    before = [Fraction(weight) for weight in weights]
    before[number] += (Fraction(change.new_weight) - before[number]) * Fraction(999, 1000)
    totals = exact_totals(rows, before)
    assert totals[picked] == max(totals) or smallest == 0 or before[number] < 0


@given(table=tables(ANY))
def test_change_always_takes_the_highest_total_from_the_pick(table: tuple[Rows, list[float]]) -> None:
    rows, weights = table
    decision = decided(rows, weights)
    change = smallest_change(decision)
    assume(change is not None)
    assert change is not None
    number = int(change.scorer[1:])
    again = decided(rows, [*weights[:number], change.new_weight, *weights[number + 1 :]])

    assert change.new_weight >= 0
    assert decision.picked[0] not in again.tied


@given(table=tables(ANY), data=st.data())
def test_leaders_are_those_of_the_decision_with_the_other_weights(
    table: tuple[Rows, list[float]], data: st.DataObject
) -> None:
    rows, weights = table
    numbers = st.integers(0, len(weights) - 1)
    others = data.draw(st.dictionaries(numbers, st.floats(0, 10)))
    decision = decided(rows, weights)

    found = leaders(decision, {f"s{number}": weight for number, weight in others.items()})

    again = decided(rows, [others.get(number, weight) for number, weight in enumerate(weights)])
    assert found == again.tied
    assert leaders(decision, {"of another profile": 3.0}) == decision.tied


@pytest.mark.parametrize(
    ("rows", "weights", "scorer", "threshold", "picks"),
    [
        pytest.param([[1, 0], [0, 1]], [2, 1], "s0", 1.0, ("e1",), id="less_of_one"),
        pytest.param([[1, 0], [0, 0.5]], [1, 1], "s0", 0.5, ("e1",), id="nearer_of_two_ways"),
        pytest.param([[1, 0.5], [0, 0.75], [0, 1]], [1, 1], "s0", 0.5, ("e2",), id="best_of_the_rest"),
        pytest.param([[1, 0], [0, 1], [0, 1]], [2, 1], "s0", 1.0, ("e1", "e2"), id="two_together"),
        pytest.param([[0, 0.5], [1, 0.75]], [-2, 1], "s0", 0.0, ("e1",), id="negative_beyond_its_tie"),
        pytest.param([[0.5, 0.25], [0.5, 0.75]], [1, -2], "s1", 0.0, ("e1",), id="terms_that_cancel_out"),
    ],
)
def test_change_in_hand_computed_cases(
    rows: Rows, weights: list[float], scorer: str, threshold: float, picks: tuple[str, ...]
) -> None:
    change = smallest_change(decided(rows, weights))
    assert change is not None
    assert (change.scorer, change.picks) == (scorer, picks)
    assert change.new_weight == pytest.approx(threshold, abs=1e-12)


@pytest.mark.parametrize(
    "rows",
    [pytest.param([[1.0, 0.5]], id="alone"), pytest.param([[1.0, 1.0], [0.5, 0.0]], id="best_by_every_term")],
)
def test_no_change_is_returned_when_none_changes_the_pick(rows: Rows) -> None:
    assert smallest_change(decided(rows, [1, 1])) is None


def test_no_change_is_returned_when_the_picker_ignores_totals() -> None:
    decision = decided([[1], [0]], [1], picker=RandomPicker())
    assert (smallest_change(decision), leaders(decision, {})) == (None, None)


def test_dropped_endpoints_never_lead() -> None:
    fleet = [endpoint("e0"), endpoint("e1", labels={"llm-d.ai/role": "prefill"})]
    scorers = [("s0", Column([0.0, 1.0]), 1.0)]
    profile = Profile(scorers, MaxScorePicker(), [("roles", decode_filter())])

    decision = decide(profile, RequestView(model="m", now=0.0), fleet, rng=no_chance)

    assert decision.picked == ("e0",)
    assert smallest_change(decision) is None
    assert decision.tied == ("e0",)
    passed = [decision.filters_passed(each.dropped) for each in decision.scored]
    assert passed == [("roles",), ()]


def test_no_change_is_returned_when_no_endpoint_was_picked() -> None:
    fleet = [endpoint("e0", labels={"llm-d.ai/role": "prefill"})]
    profile = Profile([("s0", Column([1.0]), 1.0)], MaxScorePicker(), [("roles", decode_filter())])

    decision = decide(profile, RequestView(model="m", now=0.0), fleet, rng=no_chance)

    assert (decision.picked, decision.tied, smallest_change(decision)) == ((), (), None)
    assert leaders(decision, {"s0": 2.0}) is None
