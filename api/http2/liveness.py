"""Time limits of a connection: for its first bytes, and for its silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GREETING_S = 10.0
"""Time for the preface and the settings that begin a connection; a gateway sends both at once."""

SILENCE_S = 60.0
"""Time without data after which a gateway is pinged: the streams of one that vanished would stay for ever."""

PONG_S = 20.0
"""Time that it has for the pong."""


class Liveness:
    """Pings a silent peer, and ends the connection of one that does not answer or never begins.

    Args:
        is_greeted: returns whether the connection has begun.
        ping: sends a ping.
        end: closes the connection, with the limit that the peer passed: `greeting` or `silence`.

    Attributes:
        got_data: set it whenever the peer sends anything.
    """

    def __init__(
        self, *, is_greeted: Callable[[], bool], ping: Callable[[], None], end: Callable[[str], None]
    ) -> None:
        self._is_greeted, self._ping, self._end = is_greeted, ping, end
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(GREETING_S, self._check_greeting)
        self.got_data = False

    def stop(self) -> None:
        """Check nothing more."""
        self._timer.cancel()

    def _check_greeting(self) -> None:
        if self._is_greeted():
            self._timer = self._loop.call_later(SILENCE_S, self._ping_if_silent)
        else:
            self._end("greeting")

    def _ping_if_silent(self) -> None:
        if self.got_data:
            self.got_data = False
            self._timer = self._loop.call_later(SILENCE_S, self._ping_if_silent)
            return
        self._ping()
        self._timer = self._loop.call_later(PONG_S, self._end_if_silent)

    def _end_if_silent(self) -> None:
        if self.got_data:
            self._timer = self._loop.call_later(SILENCE_S, self._ping_if_silent)
        else:
            self._end("silence")
