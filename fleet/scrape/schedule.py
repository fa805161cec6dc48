"""Scrape schedule: steady ticks, spread over time, less frequent while an endpoint is idle."""

from __future__ import annotations

import math
from dataclasses import dataclass

GOLDEN_RATIO_PART = (math.sqrt(5) - 1) / 2
"""Steps of this part of a circle spread any number of points evenly (three-distance theorem)."""

MAX_SPREAD_S = 1.0
"""Time within which the first scrape of an endpoint starts, whatever the interval."""

RELIEVED_S = 5.0
"""Time between two scrapes of an endpoint whose load is known from elsewhere: facts and adapters are still read."""

WARM_S = 1.0
"""Time for which a picked endpoint counts as busy, until its metrics show the request."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals between scrapes.

    Attributes:
        interval_s: interval of a busy endpoint.
        idle_interval_s: longest interval of an idle endpoint, at least `interval_s`.
    """

    interval_s: float
    idle_interval_s: float


class Spread:
    """Phases of endpoints within the interval, spread evenly.

    Args:
        start: phase of the first endpoint, 0 to 1; random, so that several pickers do not scrape in step.
    """

    def __init__(self, start: float) -> None:
        self._next = start

    def take(self) -> float:
        """Return the phase of the next endpoint, 0 to 1."""
        phase = self._next
        self._next = (phase + GOLDEN_RATIO_PART) % 1.0
        return phase


class Schedule:
    """Scrape times of one endpoint.

    A scrape that shows work, or a pick, makes the endpoint busy; requests that are known without a scrape are no work in
    this sense. Every other scrape doubles the period, up to the idle
    interval. For a period p the ticks are at (n + phase) * p, so endpoints with the same period stay spread over it.

    Args:
        phase: phase of the endpoint in every period, 0 to 1.
    """

    def __init__(self, phase: float) -> None:
        self._phase = phase
        self._doublings = 0
        self._picked_at = self._relieved_until = -math.inf
        self._max_age_s = math.inf

    def relieve(self, until: float) -> None:
        """Make scrapes rare until then: the load is known from elsewhere."""
        self._relieved_until = until

    def first(self, intervals: Intervals, *, now: float) -> float:
        """Return the first tick, soon after `now`."""
        return now + self._phase * min(intervals.interval_s, MAX_SPREAD_S)

    def period_s(self, intervals: Intervals) -> float:
        """Return the current time between two ticks."""
        longest_s = max(intervals.interval_s, min(intervals.idle_interval_s, self._max_age_s))
        return min(intervals.interval_s * (1 << self._doublings), longest_s)

    def after(
        self,
        intervals: Intervals,
        *,
        began: float,
        now: float,
        shows_work: bool,
        max_age_s: float = math.inf,
    ) -> float:
        """Return the tick after a scrape that began at `began` and ended at `now`; it is later than both.

        `max_age_s` bounds the period, until the next scrape, but not below the interval.

        Missed ticks are dropped. Two scrapes are at least half a period apart, also after a change of the period. `began`
        may be slightly before its tick, because timers have millisecond resolution.
        """
        self._max_age_s = max_age_s
        if shows_work or now - self._picked_at <= WARM_S:
            self._doublings = 0
        elif intervals.interval_s * (1 << self._doublings) < intervals.idle_interval_s:
            self._doublings += 1
        period = self.period_s(intervals)
        if now < self._relieved_until:
            period = max(intervals.idle_interval_s, RELIEVED_S)
        earliest = max(began + period / 2, now)
        tick = (math.floor(earliest / period - self._phase) + 1 + self._phase) * period
        return tick if tick > earliest else tick + period

    def picked(self, intervals: Intervals, *, began: float, now: float, max_age_s: float = 0.0) -> float:
        """Return the next tick of a picked endpoint, whose last scrape began at `began`; infinity while scrapes are rare.

        If its load may not be older than the interval, it becomes busy; otherwise the period is at most `max_age_s`.
        """
        self._max_age_s = min(self._max_age_s, max_age_s)
        if max_age_s <= intervals.interval_s:
            self._picked_at = now
            self._doublings = 0
        if now < self._relieved_until:
            return math.inf
        return max(now, began + self.period_s(intervals))
