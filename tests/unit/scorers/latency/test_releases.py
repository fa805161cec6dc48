"""When requests release the blocks that they hold: by when their responses began, and how long responses take."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from kvatlas.scorers.core.candidates import KV_UTILIZATION, N_STATE
from kvatlas.scorers.latency.lines import MEMORY, N_FEATURES
from kvatlas.scorers.latency.release_arithmetic import N_KNOWN
from kvatlas.scorers.latency.releases import ENOUGH, Releases

RESIDENCE_MS = 1000.0
NOW = 100.0
PER_WAIT = 0.5
"""Cost of a millisecond of waiting for blocks."""


def taught(parts: list[float]) -> Releases:
    releases = Releases()
    for part in parts:
        releases.learn(part)
    return releases


def waits(releases: Releases, missing: float, *, rows: list[int], used: float = 1.0) -> list[float]:
    """Return the waits of endpoints that lack a part of their blocks, in mean times of a response."""
    features, costs = np.zeros((N_FEATURES, len(rows))), np.ones((N_FEATURES, len(rows)))
    features[0], features[MEMORY], costs[MEMORY] = 7.0, missing * RESIDENCE_MS, PER_WAIT
    totals, state = np.add.reduce(features * costs), np.full((N_STATE, len(rows)), np.nan)
    state[KV_UTILIZATION] = used
    releases.refine(
        features, costs, totals, state, rows=np.array(rows, np.intp), now=NOW, residence_ms=RESIDENCE_MS
    )
    assert totals.tolist() == pytest.approx((7.0 + PER_WAIT * features[MEMORY]).tolist())
    found: list[float] = (features[MEMORY] / RESIDENCE_MS).tolist()
    return found


def test_requests_that_began_together_release_their_blocks_together() -> None:
    releases = taught([1.0] * ENOUGH)
    for _ in range(4):
        releases.add(0, now=NOW - 0.75, n_tokens=100.0)
        releases.add(1, now=NOW - 0.125, n_tokens=100.0)

    assert waits(releases, 0.1, rows=[0, 1]) == pytest.approx([0.25, 0.875], abs=0.07)
    assert waits(releases, 0.9, rows=[0, 1]) == pytest.approx([0.25, 0.875], abs=0.07)


def test_the_requests_that_end_first_count_first() -> None:
    releases = taught([1.0] * ENOUGH)
    for age in (0.9, 0.6, 0.3, 0.0):
        releases.add(0, now=NOW - age, n_tokens=100.0)

    found = [waits(releases, missing, rows=[0])[0] for missing in (0.2, 0.45, 0.7, 0.95)]
    assert found == pytest.approx([0.1, 0.4, 0.7, 1.0], abs=0.07)


def test_blocks_that_no_request_needs_are_free_sooner() -> None:
    """Of half of the blocks that are in use, a quarter of all is a half."""
    releases = taught([1.0] * ENOUGH)
    for age in (0.9, 0.3):
        releases.add(0, now=NOW - age, n_tokens=100.0)

    assert waits(releases, 0.3, rows=[0], used=0.5) == pytest.approx([0.7], abs=0.07)


def test_how_long_a_response_took_says_nothing_where_lengths_have_no_memory() -> None:
    draw = random.Random(1)
    releases = taught([draw.expovariate(1.0) for _ in range(1000)])
    for _ in range(8):
        releases.add(0, now=NOW, n_tokens=50.0)
        releases.add(1, now=NOW - 1.0, n_tokens=50.0)

    assert waits(releases, 0.4, rows=[0, 1]) == pytest.approx([0.51, 0.51], abs=0.15)  # -log(1 - 0.4)


@pytest.mark.parametrize(
    ("parts", "rows", "used"),
    [
        pytest.param([1.0] * (ENOUGH - 1), [0], 1.0, id="too_few_responses"),
        pytest.param([1.0] * ENOUGH, [1], 1.0, id="no_request_known"),
        pytest.param([1.0] * ENOUGH, [5000], 1.0, id="unknown_row"),
        pytest.param([1.0] * ENOUGH, [0], float("nan"), id="unknown_load"),
    ],
)
def test_a_wait_stays_what_it_was_if_nothing_is_known(
    parts: list[float], rows: list[int], used: float
) -> None:
    releases = taught(parts)
    releases.add(0, now=NOW - 0.5, n_tokens=100.0)

    assert waits(releases, 0.25, rows=rows, used=used) == [0.25]


def test_more_than_all_blocks_take_as_many_responses() -> None:
    releases = taught([1.0] * ENOUGH)
    releases.add(0, now=NOW - 0.5, n_tokens=100.0)

    assert waits(releases, 1.75, rows=[0]) == [1.75]


def test_what_no_request_lacks_is_not_changed() -> None:
    releases = taught([1.0] * ENOUGH)
    releases.add(0, now=NOW - 0.5, n_tokens=100.0)

    assert waits(releases, 0.0, rows=[0]) == [0.0]


class ReleasesMachine(RuleBasedStateMachine):
    """All responses take equally long, so the first blocks are free when the oldest request that is known ends."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.releases = taught([1.0] * ENOUGH)
        self.model: dict[int, list[float]] = {}

    @rule(
        target=held,
        row=st.integers(0, 40),
        age=st.sampled_from((0.0, 0.125, 0.5, 0.875)),
        n_tokens=st.sampled_from((0.0, 80.0)),
    )
    def add(self, row: int, age: float, n_tokens: float) -> tuple[int, int, float]:
        place = self.releases.add(row, now=NOW - age, n_tokens=n_tokens)
        known = self.model.setdefault(row, [])
        assert (place >= 0) is (n_tokens > 0.0 and len(known) < N_KNOWN)
        if place >= 0:
            known.append(age)
        return row, place, age

    @rule(removed=consumes(held))
    def remove(self, removed: tuple[int, int, float]) -> None:
        row, place, age = removed
        if row not in self.model:  # its endpoint was forgotten
            return
        self.releases.remove(row, place)
        if place >= 0:
            self.model[row].remove(age)

    @rule()
    def forget_idle(self) -> None:
        """Close up the rows; those with requests keep theirs, as their requests name them."""
        kept = {row: row for row, known in self.model.items() if known}
        self.releases.move(kept)
        self.model = {row: self.model[row] for row in kept}

    @invariant()
    def first_blocks_are_those_of_the_oldest(self) -> None:
        rows = sorted(self.model)
        found = waits(self.releases, 0.02, rows=rows)
        for row, wait in zip(rows, found, strict=True):
            ages = self.model[row]
            assert wait == pytest.approx(1.0 - max(ages) if ages else 0.02, abs=0.07)


TestReleases = ReleasesMachine.TestCase


def test_requests_follow_their_endpoint_to_another_row() -> None:
    releases = taught([1.0] * ENOUGH)
    place = releases.add(30, now=NOW - 0.75, n_tokens=100.0)
    releases.add(3, now=NOW - 0.5, n_tokens=100.0)

    releases.move({30: 0, 9: 1})

    assert waits(releases, 0.1, rows=[0, 1, 3, 30]) == pytest.approx([0.25, 0.1, 0.1, 0.1], abs=0.07)
    releases.remove(0, place)
    assert waits(releases, 0.1, rows=[0]) == [0.1]
