"""Scrape times: steady phases, spread over the period, and longer periods for idle endpoints."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.fleet.scrape.schedule import MAX_SPREAD_S, RELIEVED_S, WARM_S, Intervals, Schedule, Spread

INTERVALS = Intervals(interval_s=0.5, idle_interval_s=3.0)
PLACES = st.floats(0, 1, exclude_max=True)


def ticks(
    schedule: Schedule, intervals: Intervals, *, work: list[bool], start: float = 1000.0
) -> list[float]:
    """Return the times of scrapes that take no time, each with or without work."""
    times = [start]
    for shows_work in work:
        times.append(schedule.after(intervals, began=times[-1], now=times[-1], shows_work=shows_work))
    return times


@pytest.mark.parametrize(
    ("began", "now", "tick"),
    [
        pytest.param(100.25, 100.26, 100.75, id="in_time"),
        pytest.param(100.25, 100.75, 101.25, id="exactly_at_the_next_tick"),
        pytest.param(100.25, 103.2, 103.25, id="missed_ticks_are_dropped"),
        pytest.param(100.249, 100.249, 100.75, id="timer_fired_early"),
        pytest.param(100.27, 100.27, 100.75, id="timer_fired_late"),
    ],
)
def test_busy_endpoint_is_scraped_on_its_grid(began: float, now: float, tick: float) -> None:
    assert Schedule(0.5).after(INTERVALS, began=began, now=now, shows_work=True) == tick


@given(
    place=PLACES,
    interval=st.floats(0.001, 10),
    factor=st.floats(1, 100),
    scrapes=st.lists(
        st.tuples(st.floats(-0.0005, 20), st.booleans(), st.booleans()), min_size=1, max_size=40
    ),
)
def test_every_tick_is_ahead_and_no_further_than_one_and_a_half_periods(
    place: float, interval: float, factor: float, scrapes: list[tuple[float, bool, bool]]
) -> None:
    intervals, schedule = Intervals(interval, interval * factor), Schedule(place)
    began = 1000.0
    for took, shows_work, is_picked in scrapes:
        now = began + max(took, -interval / 4)
        if is_picked:
            assert now <= schedule.picked(intervals, began=began, now=now) <= now + interval + 0.001
        tick = schedule.after(intervals, began=began, now=now, shows_work=shows_work)
        period = schedule.period_s(intervals)
        assert interval <= period <= interval * factor * 1.001
        assert tick > max(began, now)
        assert tick >= began + period * 0.499
        assert tick <= max(began + period / 2, now) + period * 1.001
        on_grid = tick / period - place
        assert on_grid == pytest.approx(round(on_grid), abs=1e-3)
        began = tick


def test_idle_endpoint_is_scraped_less_and_less_often_up_to_the_idle_interval() -> None:
    times = ticks(Schedule(0.0), INTERVALS, work=[True, True, *[False] * 12])

    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[:2] == [0.5, 0.5]
    assert gaps[-4:] == [3.0, 3.0, 3.0, 3.0]
    assert all(0.5 <= gap <= 4.5 for gap in gaps)


def test_period_doubles_with_every_scrape_without_work() -> None:
    schedule = Schedule(0.25)
    periods = [schedule.period_s(INTERVALS)]
    for shows_work in (False, False, False, False, True, False):
        schedule.after(INTERVALS, began=100.0, now=100.0, shows_work=shows_work)
        periods.append(schedule.period_s(INTERVALS))

    assert periods == [0.5, 1.0, 2.0, 3.0, 3.0, 0.5, 1.0]


def test_picked_endpoint_is_due_one_interval_after_its_last_scrape_and_at_once_if_that_is_over() -> None:
    schedule = Schedule(0.0)
    ticks(schedule, INTERVALS, work=[False] * 5)

    assert schedule.picked(INTERVALS, began=100.0, now=100.2) == 100.5
    assert schedule.picked(INTERVALS, began=100.0, now=102.0) == 102.0


def test_picked_endpoint_is_busy_for_a_while_though_it_shows_no_work() -> None:
    schedule = Schedule(0.0)
    ticks(schedule, INTERVALS, work=[False] * 5)
    assert schedule.period_s(INTERVALS) == 3.0

    schedule.picked(INTERVALS, began=99.0, now=100.0)
    periods: list[float] = []
    for now in (100.0, 100.0 + WARM_S, 100.0 + WARM_S + 0.1):
        schedule.after(INTERVALS, began=now, now=now, shows_work=False)
        periods.append(schedule.period_s(INTERVALS))

    assert periods == [0.5, 0.5, 1.0]


def test_known_requests_bound_the_period_by_the_age_that_decisions_accept() -> None:
    schedule = Schedule(0.0)
    periods: list[float] = []
    for max_age_s in (1.2, 1.2, 1.2, 0.1, math.inf):
        schedule.after(INTERVALS, began=100.0, now=100.0, shows_work=False, max_age_s=max_age_s)
        periods.append(schedule.period_s(INTERVALS))

    assert periods == [1.0, 1.2, 1.2, 0.5, 3.0]


def test_pick_that_accepts_an_older_load_brings_the_next_tick_within_that_age_and_does_not_warm() -> None:
    schedule = Schedule(0.0)
    ticks(schedule, INTERVALS, work=[False] * 5)
    assert schedule.period_s(INTERVALS) == 3.0

    assert schedule.picked(INTERVALS, began=100.0, now=100.2, max_age_s=1.2) == 101.2
    assert schedule.picked(INTERVALS, began=100.0, now=105.0, max_age_s=1.2) == 105.0
    schedule.after(INTERVALS, began=105.0, now=105.0, shows_work=False, max_age_s=1.2)
    assert schedule.period_s(INTERVALS) == 1.2


def test_equal_intervals_leave_idle_endpoints_at_the_pace_of_busy_ones() -> None:
    times = ticks(Schedule(0.0), Intervals(0.5, 0.5), work=[False] * 4)

    assert times == [1000.0, 1000.5, 1001.0, 1001.5, 1002.0]


@given(start=PLACES, n=st.integers(2, 200), period=st.sampled_from((0.05, 0.8, 1.0)))
def test_endpoints_of_one_period_are_spread_evenly_over_it(start: float, n: int, period: float) -> None:
    spread = Spread(start)
    intervals = Intervals(period, period)

    found = sorted(
        Schedule(spread.take()).after(intervals, began=9.0, now=10.0, shows_work=True) for _ in range(n)
    )

    assert found[0] > 10.0
    assert found[-1] <= 10.0 + period * 1.001
    gaps = [after - before for before, after in itertools.pairwise([*found, found[0] + period])]
    assert min(gaps) > 0.3 * period / n
    assert max(gaps) < 3.0 * period / n


@pytest.mark.parametrize("interval", [0.05, 60.0])
def test_first_tick_comes_soon(interval: float) -> None:
    tick = Schedule(0.99).first(Intervals(interval, interval), now=10.0)

    assert 10.0 <= tick <= 10.0 + min(interval, MAX_SPREAD_S)


def test_endpoint_whose_load_is_known_from_elsewhere_is_scraped_rarely() -> None:
    schedule = Schedule(0.5)
    schedule.relieve(1002.0)
    first, second, third = ticks(schedule, INTERVALS, work=[True, True], start=1000.0)
    assert RELIEVED_S / 2 <= second - first <= 1.5 * RELIEVED_S
    assert schedule.picked(INTERVALS, began=1000.0, now=1001.0) > 1e9  # no sooner for a pick
    assert third - second <= 1.5 * INTERVALS.interval_s  # once nobody tells the load any more
