"""Fair use of the event loop by the connections of a listener."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Protocol

from ...fleet.tallies import Tally

TURN_S = 0.01
"""Time in which connections are served at once; then everything else on the loop has its turn."""


class Waiter(Protocol):
    """A connection that waits for its turn."""

    def take_turn(self) -> None:
        """Do a little work: a few milliseconds at most."""
        ...


class Turns:
    """Serves connections in the order in which they ask, for `TURN_S` at once.

    Args:
        deferred: counts how often a connection had to wait for its turn.

    Attributes:
        now: monotonic time of the last call of `has_time`.
        ends_at: monotonic time at which the work of this turn has to end.
    """

    def __init__(self, deferred: Tally) -> None:
        self._deferred = deferred
        self._waiting: deque[Waiter] = deque()
        self._is_due = False
        self.now = self.ends_at = 0.0

    def has_time(self) -> bool:
        """Return whether a connection with new data may be served at once."""
        self.now = now = monotonic()
        if not self._is_due:
            self._begin_later(now)
        return now < self.ends_at

    def wait(self, waiter: Waiter) -> None:
        """Serve a connection when its turn comes. It must not be waiting already."""
        self._deferred.add()
        self._waiting.append(waiter)
        if not self._is_due:
            self._begin_later(monotonic())

    def _begin_later(self, now: float) -> None:
        self._is_due = True
        self.ends_at = now + TURN_S
        asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        now = monotonic()
        self.ends_at = now + TURN_S
        while self._waiting and now < self.ends_at:
            self._waiting.popleft().take_turn()
            now = monotonic()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._serve)
        else:
            self._is_due = False
