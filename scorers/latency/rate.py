"""Rates of requests, with exponentially fading counts over those of all processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..core.shared import Contribution, SharedSums

MEMORY_MS = 30_000.0
"""Time constant in milliseconds: bursts of a minute are followed."""

N_NUMBERS = 2
"""Numbers of a rate between processes."""


class _Count(NamedTuple):
    """Fading number of events at a time, and the time of the first one; infinite before it."""

    value: float = 0.0
    at: float = 0.0
    since: float = math.inf

    def faded(self, now: float) -> float:
        return self.value * math.exp(-max(0.0, now - self.at) * 1000.0 / MEMORY_MS)

    def plus(self, other: _Count) -> _Count:
        at = max(self.at, other.at)
        return _Count(self.faded(at) + other.faded(at), at, min(self.since, other.since))


class Rate:
    """Events per millisecond, those that siblings have counted included. Cost: O(1) each."""

    def __init__(self) -> None:
        self._own = self._theirs = _Count()

    def add(self, now: float) -> None:
        """Count an own event at `now`, in monotonic seconds."""
        self._own = self._own.plus(_Count(1.0, now, now))

    def take_back(self, at: float) -> None:
        """Forget an own event that was counted at `at`; never more than there is."""
        left = self._own.plus(_Count(-1.0, at))
        self._own = left._replace(value=max(0.0, left.value))

    def at(self, now: float) -> float:
        """Return the rate; 0 before the first event."""
        count = self._own.plus(self._theirs)
        if count.since == math.inf:
            return 0.0
        # of a short past only a part of the time constant was seen
        seen_ms = MEMORY_MS * -math.expm1(-max(0.0, now - count.since) * 1000.0 / MEMORY_MS)
        return count.faded(now) / max(seen_ms, 1000.0)

    def numbers(self, now: float) -> Sequence[float] | None:
        """Return the count of the own events, and the seconds since the first one; None before it."""
        return None if self._own.since == math.inf else (self._own.faded(now), now - self._own.since)

    def learn(self, siblings: Sequence[Contribution]) -> None:
        """Count the events of siblings, each time all of them; numbers that make no sense are ignored."""
        self._theirs = _Count()
        for _, at, numbers in siblings:
            if len(numbers) == N_NUMBERS and min(numbers) >= 0.0:
                self._theirs = self._theirs.plus(_Count(numbers[0], at, at - numbers[1]))


class SharedRates:
    """Rates by name, each that of all processes.

    Args:
        rates: name -> rate.
    """

    def __init__(self, rates: Mapping[str, Rate]) -> None:
        self._rates = rates
        self.shared = SharedSums(self._own, self._learn, lambda: tuple(self._rates))
        """See `Rate.numbers`."""

    def add(self, name: str, now: float) -> None:
        """Count an own event of one."""
        self._rates[name].add(now)
        if self.shared.on_change is not None:
            self.shared.note(name)

    def take_back(self, name: str, at: float) -> None:
        """Forget an own event of one."""
        self._rates[name].take_back(at)
        self.shared.note(name)

    def _own(self, name: str, now: float) -> Sequence[float] | None:
        return self._rates[name].numbers(now)

    def _learn(self, name: str, siblings: Sequence[Contribution]) -> None:
        rate = self._rates.get(name)
        if rate is not None:
            rate.learn(siblings)
