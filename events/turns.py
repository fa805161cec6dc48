"""Turns on the event loop: all work on event messages, shared out so that everything else gets turns too."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Protocol

from .tasks import keep

TURN_S = 0.002
"""Work on event messages between two turns of other tasks. A turn of the loop itself takes about 0.05 ms."""


class Work(Protocol):
    """Something that has messages or batches to handle."""

    def work(self, until: float) -> bool:
        """Handle at least one, and no further after `until`, by `perf_counter`; return whether there are more."""
        ...


class Turns:
    """Runs the work of all publishers, one after the other, in turns of `TURN_S`.

    However many publishers have work, it holds the loop no longer than for one turn and one message.

    Attributes:
        until: end of the current turn, by `perf_counter`; in the past between turns.
    """

    def __init__(self) -> None:
        self.until = 0.0
        self._waiting: dict[Work, None] = {}
        """In the order of their turns."""
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, work: Work) -> None:
        """Let `work` have turns until it has no more to do; nothing if it has them already."""
        self._waiting[work] = None
        self._has_work.set()
        if self._task is None:
            self._task = keep(self._run, "event messages")

    def remove(self, work: Work) -> None:
        """Give `work` no further turns."""
        self._waiting.pop(work, None)

    async def close(self) -> None:
        """End all turns."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await self._has_work.wait()
            self.until = perf_counter() + TURN_S
            while self._waiting and perf_counter() < self.until:
                self._turn(next(iter(self._waiting)))
            if self._waiting:
                await asyncio.sleep(0)
            else:
                self._has_work.clear()

    def _turn(self, work: Work) -> None:
        self._waiting.pop(work)  # it comes last, also if it adds itself while it works
        if work.work(self.until):
            self._waiting[work] = None
