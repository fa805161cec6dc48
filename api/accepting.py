"""Acceptance of connections on one listening socket, in turns, and while descriptors run out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
from collections.abc import Callable

ACCEPTS_PER_TURN = 32
"""Connections accepted before others are served: 4 ms. asyncio's own server would accept as many as the backlog."""

RETRY_S = 0.2
"""Pause after which connections are accepted again if the process had no descriptor left."""

_NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Accepting:
    """Accepts until `close`.

    Args:
        listening: bound and listening.
        on_accepted: takes a socket that does not block.
        on_shortage: called when no descriptor is left; it may close a connection.
    """

    def __init__(
        self,
        listening: socket.socket,
        *,
        on_accepted: Callable[[socket.socket], None],
        on_shortage: Callable[[], object],
    ) -> None:
        self._listening, self._on_accepted, self._on_shortage = listening, on_accepted, on_shortage
        self._retry: asyncio.TimerHandle | None = None
        self._spare: int | None = None
        self._loop = asyncio.get_running_loop()
        listening.setblocking(False)
        self._keep_spare()
        self._loop.add_reader(listening, self._accept)

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        return self._listening.fileno() >= 0

    def close(self) -> None:
        """Accept no more connections; nothing if that was done before."""
        if not self.is_open:
            return
        self._loop.remove_reader(self._listening)
        if self._retry is not None:
            self._retry.cancel()
        self._listening.close()
        self._drop_spare()

    def _accept(self) -> None:
        self._keep_spare()
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTOR:
                    raise
                if self._spare is None:
                    if self._is_awaited():
                        self._pause()
                    return
                self._drop_spare()
                continue
            accepted.setblocking(False)
            self._on_accepted(accepted)

    def _keep_spare(self) -> None:
        """Keep one descriptor back, so that others who take all of them leave one for a probe."""
        if self._spare is None:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _drop_spare(self) -> None:
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None

    def _is_awaited(self) -> bool:
        """Return whether a connection waits; without a descriptor `accept` fails before it looks."""
        poll = select.poll()
        poll.register(self._listening, select.POLLIN)
        return bool(poll.poll(0))

    def _pause(self) -> None:
        """Stop accepting until a descriptor may be free."""
        self._on_shortage()
        self._loop.remove_reader(self._listening)
        self._retry = self._loop.call_later(RETRY_S, self._loop.add_reader, self._listening, self._accept)
