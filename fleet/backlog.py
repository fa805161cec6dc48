"""Event batches that take longer than a turn of the event loop: the rest is applied in the next turns."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from ..events.model import Batch
from ..indexer.steps import Steps

SLICE_COST = 5_000
"""Work per slice in microseconds as `Steps` guesses them: what a request may wait for each publisher's message."""

PAUSE_S = 0.005
"""Time between two slices: however much is left to do, requests get half of the event loop."""

MAX_MESSAGE_COST = 10_000_000
"""Work for one message, ten seconds; the rest of it is dropped. The largest messages of engines take one."""

MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Size of the batches that wait behind one that is applied; further ones are dropped."""


class Turns:
    """Slices of all backlogs of a fleet, one after the other, on the running event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Backlog, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, backlog: Backlog) -> None:
        """Work off a backlog in the next turns."""
        self._waiting[backlog] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PAUSE_S, self._turn)

    def _turn(self) -> None:
        self._timer = None
        backlog = next(iter(self._waiting))
        del self._waiting[backlog]
        try:
            backlog.proceed()
        finally:
            if backlog.is_busy:
                self._waiting[backlog] = None
            if self._waiting:
                self.add(next(iter(self._waiting)))


class Backlog:
    """Batches of one publisher, applied in order: at once if they are short, and as long as none is in progress.

    Args:
        turns: works off what is left.
        apply: applies a batch in steps.
        drop: called with a reason for each batch that is dropped as a whole or in part.
    """

    def __init__(self, turns: Turns, *, apply: Callable[[Batch], Steps], drop: Callable[[str], None]) -> None:
        self._turns, self._apply, self._drop = turns, apply, drop
        self._current: Steps | None = None
        self._cost = 0
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0

    @property
    def is_busy(self) -> bool:
        """Whether a batch is not applied yet."""
        return self._current is not None

    def add(self, batch: Batch) -> None:
        """Apply a batch after all before it, a first slice of it at once if there are none."""
        if not self.is_busy:
            self._start(batch)
        elif self._waiting_bytes + batch.size_bytes > MAX_WAITING_BYTES:
            self._drop("backlog_full")
        else:
            self._waiting.append(batch)
            self._waiting_bytes += batch.size_bytes

    def _start(self, batch: Batch) -> None:
        self._begin(batch)
        self.proceed()
        if self.is_busy:
            self._turns.add(self)

    def proceed(self) -> None:
        """Apply one slice."""
        left = SLICE_COST
        while left > 0 and self._current is not None:
            cost = next(self._current, None)
            if cost is None:
                self._next()
                continue
            left -= cost
            self._cost += cost
            if self._cost > MAX_MESSAGE_COST:
                self._next()
                self._drop("too_slow")

    def clear(self) -> None:
        """Drop everything that is not applied."""
        self._current = None
        self._waiting.clear()
        self._waiting_bytes = 0

    def _next(self) -> None:
        self._current = None
        if self._waiting:
            batch = self._waiting.popleft()
            self._waiting_bytes -= batch.size_bytes
            self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        self._current, self._cost = self._apply(batch), 0
