"""Time limit for the first message of a call: calls without any cost memory and a place among those in progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice

FIRST_MESSAGE_S = 10.0
"""Time between the headers of a call and its first message; gateways send both at once."""

_AT_ONCE = 100
"""Calls ended at once; the others wait a moment, which leaves the loop to others."""

_MOMENT_S = 0.01


class FirstMessages:
    """Streams of one connection on which no message has come.

    Args:
        on_late: called with a stream whose first message did not come in time.

    Attributes:
        since: stream -> time from which its first message is waited for; take the stream out when its message comes.
    """

    def __init__(self, on_late: Callable[[int], None]) -> None:
        self._on_late = on_late
        self.since: dict[int, float] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, stream: int) -> None:
        """Begin to wait for the stream's first message."""
        self.since[stream] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(FIRST_MESSAGE_S, self._check)

    def stop(self) -> None:
        """Wait for nothing more."""
        self.since.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        limit = self._loop.time() - FIRST_MESSAGE_S
        late = [stream for stream, since in islice(self.since.items(), _AT_ONCE) if since <= limit]
        for stream in late:
            del self.since[stream]
            self._on_late(stream)
        wait_s = _MOMENT_S if len(late) == _AT_ONCE else FIRST_MESSAGE_S / 2
        self._timer = self._loop.call_later(wait_s, self._check) if self.since else None
