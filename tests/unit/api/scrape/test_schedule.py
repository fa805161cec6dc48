"""Ticks stay on their grid, and grids are spread over the interval."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.scrape.schedule import MAX_SPREAD_S, Staggering, next_tick


@pytest.mark.parametrize(
    ("last", "now", "tick"),
    [
        pytest.param(100.0, 100.01, 100.5, id="in_time"),
        pytest.param(100.0, 100.5, 101.0, id="exactly_at_the_next_tick"),
        pytest.param(100.0, 103.2, 103.5, id="missed_ticks_are_dropped"),
        pytest.param(100.5, 100.499, 101.0, id="timer_fired_early"),
        pytest.param(100.0, 100.0, 100.5, id="no_time_passed"),
    ],
)
def test_next_tick_is_the_first_one_ahead(last: float, now: float, tick: float) -> None:
    assert next_tick(first=100.0, last=last, interval_s=0.5, now=now) == tick


@given(
    first=st.floats(0, 1e6),
    interval=st.floats(0.001, 100),
    delays=st.lists(st.floats(-0.001, 500), min_size=1, max_size=30),
)
def test_ticks_advance_and_never_leave_the_grid(first: float, interval: float, delays: list[float]) -> None:
    last = first
    for delay in delays:
        tick = next_tick(first=first, last=last, interval_s=interval, now=last + delay)
        assert tick > max(last, last + delay)
        assert tick <= max(last, last + delay) + interval * 1.001
        place = (tick - first) / interval
        assert place == pytest.approx(round(place), abs=1e-4)
        last = tick


@given(start=st.floats(0, 1, exclude_max=True), n=st.integers(2, 200))
def test_first_ticks_lie_evenly_in_the_interval(start: float, n: int) -> None:
    staggering = Staggering(interval_s=0.05, start=start)

    ticks = sorted(staggering.first_tick(10.0) for _ in range(n))

    assert ticks[0] >= 10.0
    assert ticks[-1] <= 10.05
    gaps = [after - before for before, after in itertools.pairwise([*ticks, ticks[0] + 0.05])]
    assert min(gaps) > 0.3 * 0.05 / n
    assert max(gaps) < 3.0 * 0.05 / n


def test_first_tick_of_a_long_interval_comes_soon() -> None:
    staggering = Staggering(interval_s=60.0, start=0.99)

    assert staggering.first_tick(10.0) <= 10.0 + MAX_SPREAD_S
