"""Frames of what goes on, made while somebody watches and no faster than is cheap."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from .errors import UnavailableError
from .metrics import RestMetrics

FRAME_S = 1.0
"""Least time between two frames: people read no faster, and whatever happens between them comes in one."""

MAX_SHARE = 0.01
"""Part of a core that making frames may take, however large the fleet: what takes longer comes less often."""

Pieces = Generator[None, None, bytes]
"""Makes one frame, JSON on one line, in pieces between which others may run."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One state of everything.

    Attributes:
        number: 1 for the first, one more for each.
        data: JSON on one line.
    """

    number: int
    data: bytes


class LiveFeed:
    """The newest frame, for every viewer the same. For one event loop; it has no task of its own.

    A viewer that is slow is given the newest frame when it comes back, not those between: nothing is queued.

    Args:
        frame: makes a frame of the present state.
        max_viewers: seats.
        metrics: counts viewers and what they missed.
        frame_s: least seconds between two frames.
    """

    def __init__(
        self,
        frame: Callable[[], Pieces],
        *,
        max_viewers: int,
        metrics: RestMetrics,
        frame_s: float = FRAME_S,
    ) -> None:
        self._make, self._max_viewers, self._metrics, self._frame_s = frame, max_viewers, metrics, frame_s
        self._latest = Frame(0, b"")
        self._due = 0.0
        self._turn = asyncio.Lock()
        self._closing = asyncio.Event()
        self.n_viewers = 0
        """Seats taken."""

    def enter(self) -> None:
        """Take a seat, to be given back by `leave`.

        Raises:
            UnavailableError: none is free, or the process ends.
        """
        if self._closing.is_set():
            raise UnavailableError("the process ends")
        if self.n_viewers >= self._max_viewers:
            self._metrics.refused("too_many_viewers")
            raise UnavailableError(
                f"{self.n_viewers} viewers are there, rest.maxLiveViewers; close one, or ask /v1/endpoints and /v1/decisions"
            )
        self.n_viewers += 1
        self._metrics.live_viewers.set(self.n_viewers)

    def leave(self) -> None:
        """Give a seat back."""
        self.n_viewers -= 1
        self._metrics.live_viewers.set(self.n_viewers)

    async def after(self, seen: int) -> Frame | None:
        """The newest frame once it is another than number `seen`; None when the process ends.

        Whoever comes first makes it, and those who wait meanwhile get the same.
        """
        if not self._has_news(seen):
            async with self._turn:
                if not self._has_news(seen):
                    await self._until_due()
                    if self._closing.is_set():
                        return None
                    await self._renew()
        if seen:
            self._metrics.live_frames_skipped.inc(self._latest.number - seen - 1)
        return self._latest

    def close(self) -> None:
        """Let every viewer go."""
        self._closing.set()

    def _has_news(self, seen: int) -> bool:
        return self._latest.number != seen and time.monotonic() < self._due

    async def _until_due(self) -> None:
        wait_s = self._due - time.monotonic()
        if wait_s > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)

    async def _renew(self) -> None:
        pieces, cost_s = self._make(), 0.0
        data: bytes | None = None
        while data is None:
            begun = time.thread_time()
            try:
                next(pieces)
            except StopIteration as end:
                data = end.value
            cost_s += time.thread_time() - begun
            await asyncio.sleep(0)
        self._latest = Frame(self._latest.number + 1, data)
        self._due = time.monotonic() + max(self._frame_s, cost_s / MAX_SHARE)
