"""Those who wait until everything of a call is sent."""

from __future__ import annotations

import asyncio


class Waiting:
    """Waiters by stream."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[asyncio.Future[None]]] = {}

    @property
    def streams(self) -> tuple[int, ...]:
        """Streams that somebody waits for."""
        return tuple(self._waiting) if self._waiting else ()

    async def until_woken(self, stream: int) -> None:
        """Wait for the next `wake` of the stream."""
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(stream, []).append(waiting)
        await waiting

    def wake(self, stream: int) -> None:
        """Wake all who wait for the stream."""
        if not self._waiting:
            return
        for waiting in self._waiting.pop(stream, ()):
            if not waiting.done():
                waiting.set_result(None)
