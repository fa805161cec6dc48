"""When to scrape which endpoint: at steady ticks, spread over time, and less often the longer it has been idle."""

from __future__ import annotations

import math
from dataclasses import dataclass

GOLDEN_RATIO_PART = (math.sqrt(5) - 1) / 2
"""Steps of this part of a circle keep any number of points spread evenly (three-distance theorem)."""

MAX_SPREAD_S = 1.0
"""An endpoint's first scrape comes within this time, however long the interval."""

WARM_S = 1.0
"""An endpoint that was picked counts as busy for so long, since the request is yet to show in its metrics."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often to scrape.

    Attributes:
        interval_s: time between two scrapes of a busy endpoint.
        idle_interval_s: longest time between two scrapes of an idle one, at least `interval_s`.
    """

    interval_s: float
    idle_interval_s: float


class Places:
    """Places of endpoints in the interval, added one after the other.

    Args:
        start: place of the first endpoint, 0 to 1; random, so that several pickers do not scrape in step.
    """

    def __init__(self, start: float) -> None:
        self._next = start

    def take(self) -> float:
        """The next endpoint's place, 0 to 1."""
        place = self._next
        self._next = (place + GOLDEN_RATIO_PART) % 1.0
        return place


class Pace:
    """The ticks of one endpoint.

    A scrape that shows work, and a pick, make the endpoint busy. Each scrape that shows neither doubles the time to the
    next, up to the idle interval. For a period p the ticks are at (n + place) * p, so the endpoints of one period stay
    spread over it, whenever each came to it.

    Args:
        place: of the endpoint in every period, 0 to 1.
    """

    def __init__(self, place: float) -> None:
        self._place = place
        self._doublings = 0
        self._picked_at = -math.inf

    def first(self, rhythm: Rhythm, *, now: float) -> float:
        """The first tick, soon after `now`."""
        return now + self._place * min(rhythm.interval_s, MAX_SPREAD_S)

    def period_s(self, rhythm: Rhythm) -> float:
        """Time between two ticks as the endpoint is now."""
        return min(rhythm.interval_s * (1 << self._doublings), rhythm.idle_interval_s)

    def after(self, rhythm: Rhythm, *, began: float, now: float, shows_work: bool) -> float:
        """The tick after a scrape that began at `began` and ended at `now`, later than both.

        Ticks that passed meanwhile are dropped. At least half a period lies between two scrapes, also where the period
        has just changed; `began` may be a little before its tick, as timers with millisecond steps fire.
        """
        if shows_work or now - self._picked_at <= WARM_S:
            self._doublings = 0
        elif self.period_s(rhythm) < rhythm.idle_interval_s:
            self._doublings += 1
        period = self.period_s(rhythm)
        earliest = max(began + period / 2, now)
        tick = (math.floor(earliest / period - self._place) + 1 + self._place) * period
        return tick if tick > earliest else tick + period

    def picked(self, rhythm: Rhythm, *, began: float, now: float) -> float:
        """The endpoint was picked: the tick by which it is due now, after a last scrape that began at `began`."""
        self._picked_at = now
        self._doublings = 0
        return max(now, began + rhythm.interval_s)
