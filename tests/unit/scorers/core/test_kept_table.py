"""Kept decisions read as the decisions that were made, with the digits that 32 bits hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.columns import shown
from kvatlas.scorers.core.counterfactual import leaders, smallest_change
from kvatlas.scorers.core.kept_table import KeptTable
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.ratings import Ratings, Verdicts
from support.candidates import endpoint, fleets, held, load
from support.decisions import decided
from support.rating import decide

NOW = 1000.0


def coarse(candidate: Candidate) -> Candidate:
    """Return a candidate without what is kept with fewer digits or not at all."""
    seen = candidate.load
    return replace(
        candidate,
        credit=0.0,
        load=seen and replace(seen, kv_utilization=0.0, updated_at=0.0, adapters=None),
        in_flight=replace(candidate.in_flight, tokens=0),
    )


@given(fleet=fleets(min_size=1), copies=st.sampled_from((1, 33)))
def test_table_reads_as_it_was(fleet: list[Candidate], copies: int) -> None:
    table = Candidates.of(fleet * copies)
    rows = np.arange(len(table))[::-1]

    kept = KeptTable.of(table.take(rows), now=NOW)
    again = kept.table(now=NOW)

    expected = [replace(table[row], attributes={}) for row in rows.tolist()]  # not kept
    assert [coarse(each) for each in again] == [coarse(each) for each in expected]
    assert again.credit.tolist() == pytest.approx([each.credit for each in expected], rel=1e-6, abs=1e-9)
    assert again.in_flight_tokens.tolist() == pytest.approx([e.in_flight.tokens for e in expected], rel=1e-6)
    ages = [each.load.age_s(NOW) for each in expected if each.load is not None]
    read = [each.load.age_s(NOW) for each in again if each.load is not None]
    assert read == pytest.approx(ages, rel=1e-5, abs=1e-4)


def test_kept_decision_does_not_change_with_its_candidates() -> None:
    decision = decided([[0.1], [0.7]], [1.0], candidates=[endpoint("e0", of=load(waiting=3)), endpoint("e1")])
    before = decision.lasting()
    was = before.scored

    decision.candidates.state[:] = 9.0

    assert before.scored == was
    assert before.lasting() is before
    assert [each.terms[0].rating.score for each in was] == [0.1, 0.7]


ROWS = st.lists(
    st.lists(st.sampled_from((0.0, 0.1, 1 / 3, 0.5, 0.7, 1.0)), min_size=2, max_size=2), min_size=2
)


@given(rows=ROWS, weights=st.tuples(st.floats(0.1, 9), st.floats(0.1, 9)))
def test_kept_decision_has_the_same_leaders_and_the_same_smallest_change(
    rows: list[list[float]], weights: tuple[float, float]
) -> None:
    decision = decided(rows, weights)
    kept = decision.lasting()

    assert (kept.tied, kept.totals.tolist()) == (decision.tied, decision.totals.tolist())
    assert leaders(kept, {}) == decision.tied
    assert smallest_change(kept) == smallest_change(decision)


def test_shown_numbers_have_the_digits_of_32_bits() -> None:
    column = np.array([0.1, 1 / 3, 0.0, 3.0, 16_777_216.0, 123.456, np.nan, np.inf], np.float32)

    assert shown(column).tolist()[:6] == [0.1, 0.3333333, 0.0, 3.0, 16_777_216.0, 123.456]
    assert np.isnan(shown(column)[6])
    assert np.isinf(shown(column)[7])


class Silent:
    """Filter that drops the first endpoint and fails to say why."""

    type = "silent"

    def __init__(self, *, raises: bool) -> None:
        self._raises = raises

    def judge(self, request: RequestView, candidates: Candidates, **_: object) -> Verdicts:  # noqa: ARG002 (Filter)
        keep = np.ones(len(candidates), np.bool_)
        keep[0] = False
        return Verdicts(keep, self._reasons)

    def _reasons(self, dropped: Candidates) -> list[str]:  # noqa: ARG002 (Reasons)
        if self._raises:
            raise LookupError("no such zone")
        return []


@pytest.mark.parametrize(("raises", "reason"), [(True, "unknown: LookupError"), (False, "unknown")])
def test_filter_that_cannot_say_its_reason_is_explained_as_unknown(*, raises: bool, reason: str) -> None:
    profile = Profile([], MaxScorePicker(), [("silent", Silent(raises=raises))])
    decision = decide(profile, RequestView(model="m", now=0.0), [endpoint("a"), endpoint("b", prefix=held())])

    assert decision.dropped["a"].reason == reason
    assert Ratings(decision.totals).inputs is None
