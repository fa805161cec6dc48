"""Arrival times of a trace's requests: recorded times, times after other requests, or a fixed concurrency."""

from __future__ import annotations

import heapq
from math import inf
from random import Random

from .trace import Trace


class Arrivals:
    """The pending requests of a trace, by number.

    Args:
        trace: requests.
        speed: factor by which they arrive faster than recorded.
        jitter_s: limit of a random delay of requests with a recorded time; for recordings with a coarse clock.
        rng: for the jitter.
    """

    def __init__(self, trace: Trace, *, speed: float = 1.0, jitter_s: float = 0.0, rng: Random) -> None:
        self._think_s = [request.at_s / speed for request in trace.requests]
        self._followers: dict[int, list[int]] = {}
        self._due: list[tuple[float, int]] = []
        self._room = inf if trace.concurrency is None else trace.concurrency
        for number, request in enumerate(trace.requests):
            if request.after is not None:
                self._followers.setdefault(request.after, []).append(number)
            else:
                self._due.append((request.at_s / speed + jitter_s * rng.random(), number))
        heapq.heapify(self._due)

    def next_at(self, now: float) -> float:
        """Return when the next request arrives; infinity if another request must end first, or all have arrived."""
        return max(now, self._due[0][0]) if self._due and self._room >= 1 else inf

    def take(self) -> int:
        """Take the next request, and return its number.

        Raises:
            IndexError: no request is due.
        """
        self._room -= 1
        return heapq.heappop(self._due)[1]

    def ended(self, number: int, now: float) -> None:
        """Record the end of a request at `now`; requests that wait for it arrive after their think time."""
        self._room += 1
        for follower in self._followers.pop(number, ()):
            heapq.heappush(self._due, (now + self._think_s[follower], follower))
