"""When the requests of a trace come: at their times, when others have ended, or as many at once as a client keeps up."""

from __future__ import annotations

import heapq
from math import inf
from random import Random

from .trace import Trace


class Arrivals:
    """The requests of a trace still to come, by number.

    Args:
        trace: requests.
        speed: how many times faster than recorded they come.
        jitter_s: requests with a time of their own come later by a random time below this; for recordings whose
            clock is coarse.
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
        """When the next request comes, as far as is known; infinity when one must end first, or all have come."""
        return max(now, self._due[0][0]) if self._due and self._room >= 1 else inf

    def take(self) -> int:
        """Number of the next request.

        Raises:
            IndexError: none is due.
        """
        self._room -= 1
        return heapq.heappop(self._due)[1]

    def ended(self, number: int, now: float) -> None:
        """A request ended at `now`: those that waited for it come after their thinking time."""
        self._room += 1
        for follower in self._followers.pop(number, ()):
            heapq.heappush(self._due, (now + self._think_s[follower], follower))
