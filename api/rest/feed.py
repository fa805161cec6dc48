"""Frames of the live view, made only while somebody watches, at a bounded cost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from .errors import UnavailableError
from .metrics import RestMetrics

FRAME_S = 1.0
"""Shortest interval between two frames: people read no faster."""

MAX_SHARE = 0.01
"""Largest share of a core for making frames; frames that cost more come less often."""

Pieces = Generator[None, None, bytes]
"""Makes one frame, JSON on one line, in steps between which other tasks may run."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The state of the process at one time.

    Attributes:
        number: 1 for the first, one more for each.
        data: JSON on one line.
    """

    number: int
    data: bytes


class LiveFeed:
    """The newest frame, shared by all viewers. For one event loop; it has no task of its own.

    Nothing is queued: a slow viewer gets the newest frame and misses the ones between.

    Args:
        frame: makes a frame of the present state.
        max_viewers: largest number of viewers.
        metrics: counts viewers and skipped frames.
        frame_s: shortest interval between two frames, in seconds.
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
        """Number of viewers."""

    def enter(self) -> None:
        """Add a viewer, until `leave`.

        Raises:
            UnavailableError: there are too many, or the process ends.
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
        """Remove a viewer."""
        self.n_viewers -= 1
        self._metrics.live_viewers.set(self.n_viewers)

    async def after(self, seen: int) -> Frame | None:
        """Return the first frame newer than number `seen`; None when the process ends.

        The first viewer that waits makes the frame, and the others get the same one.
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
        """End the streams of all viewers."""
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
