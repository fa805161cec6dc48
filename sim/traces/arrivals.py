"""Arrival times of a trace's requests: recorded times, times after other requests, or a fixed concurrency."""

from __future__ import annotations

import heapq
from math import inf
from random import Random

from .trace import Trace


def first_arrivals(trace: Trace, *, speed: float, jitter_s: float, rng: Random) -> list[float | None]:
    """Return the arrival of each request, with constant concurrency the earliest one; None if it waits for another request.

    For the arguments see `Arrivals`.
    """
    return [
        None if request.after is not None else request.at_s / speed + jitter_s * rng.random()
        for request in trace.requests
    ]


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
        for number, at_s in enumerate(first_arrivals(trace, speed=speed, jitter_s=jitter_s, rng=rng)):
            after = trace.requests[number].after
            if at_s is not None:
                self._due.append((at_s, number))
            elif after is not None:
                self._followers.setdefault(after, []).append(number)
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
