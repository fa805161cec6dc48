"""When to scrape which endpoint: a fixed grid for each, the grids spread over the interval."""

from __future__ import annotations

import math

GOLDEN_RATIO_PART = (math.sqrt(5) - 1) / 2
"""Steps of this part of a circle keep any number of points spread evenly (three-distance theorem)."""

MAX_SPREAD_S = 1.0
"""An endpoint's first scrape comes within this time, however long the interval."""


class Staggering:
    """First ticks of endpoints that are added one after the other.

    Args:
        interval_s: time between two ticks of one endpoint.
        start: place of the first endpoint, 0 to 1; random, so that several pickers do not scrape in step.
    """

    def __init__(self, *, interval_s: float, start: float) -> None:
        self._spread_s = min(interval_s, MAX_SPREAD_S)
        self._place = start

    def first_tick(self, now: float) -> float:
        """The next endpoint's first tick, at or after `now`."""
        place = self._place
        self._place = (place + GOLDEN_RATIO_PART) % 1.0
        return now + place * self._spread_s


def next_tick(*, first: float, last: float, interval_s: float, now: float) -> float:
    """The earliest tick after both `last` and `now` on the grid `first + k * interval_s`.

    Ticks that passed meanwhile are dropped. The grid never moves, so endpoints that were slow together do not stay in
    step afterwards. `last` counts because timers with millisecond steps, as in uvloop, fire a little early.
    """
    after = max(last, now)
    tick = first + math.ceil((after - first) / interval_s) * interval_s
    return tick if tick > after else tick + interval_s
