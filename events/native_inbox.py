"""The inbox in C++, from which the native ledger reads messages in place: without Python objects for ordinary ones."""

from __future__ import annotations

import inspect
import sys

import zmq
from zmq import backend

from . import _native
from .inbox import Losses


class NativeInbox:
    """Implements `Inbox`, for a consumer that does not keep what is dropped. Losses are reported at the end of a turn.

    Arguments are those of `frame_inbox`.

    Raises:
        RuntimeError: pyzmq's library does not have the functions that this needs.
    """

    def __init__(self, socket: zmq.Socket[bytes], losses: Losses, max_queued_bytes: int) -> None:
        library = inspect.getfile(sys.modules[backend.Socket.__module__])
        self.native = _native.Inbox(library, socket.underlying, max_queued_bytes)
        """See `Inbox.native`."""
        self._losses, self._socket = losses, socket  # the address is valid while the socket exists

    @property
    def is_skipping(self) -> bool:
        """See `Inbox.is_skipping`."""
        return self.native.is_skipping()

    def next(self) -> list[bytes] | None:
        """See `Inbox.next`."""
        frames = self.native.next()
        if frames is None:
            self._report()
        return frames

    def collect(self, seconds: float) -> None:
        """See `Inbox.collect`."""
        self.native.collect(seconds)
        self._report()

    def close(self) -> None:
        """See `Inbox.close`."""
        self.native.close()

    def _report(self) -> None:
        n_too_many, n_full, error = self.native.lost()
        for reason, n_messages in (("too_many_parts", n_too_many), ("queue_full", n_full)):
            for _ in range(n_messages):
                self._losses.dropped([], reason)
        if error:
            self._losses.failed(zmq.ZMQError(error))
