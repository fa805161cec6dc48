"""Messages that wait for one consumer: those of a ZMQ socket, and a bounded queue before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, cast

import zmq

from .byte_budget import ByteBudget

if TYPE_CHECKING:
    from ._native import Inbox as NativeMessages

MAX_PARTS = 16
"""Parts of a message that are kept; publishers send three or four, ZMQ's questions about a peer up to ten."""

_SKIPPED = 1000
"""Parts that are too many, received at once, in less than a millisecond."""

_SHOWN_BYTES = 64
"""Parts of dropped messages up to this size are kept: the end of a replay is recognized by one of eight bytes."""

_OVERHEAD_BYTES = 200
"""Memory of a waiting message beside its bytes."""


class Losses(Protocol):
    """Receiver of reports about messages that could not be kept."""

    def failed(self, error: Exception) -> None:
        """Handle an exception of the socket."""
        ...

    def dropped(self, frames: list[bytes], reason: str) -> bool:
        """Count a message past a limit; return whether to keep it all the same. It may call `FrameInbox.cut`."""
        ...


class Inbox(Protocol):
    """Messages in the order in which they came."""

    @property
    def native(self) -> NativeMessages | None:
        """The same messages for a native ledger; None if they are Python objects."""
        ...

    @property
    def is_skipping(self) -> bool:
        """Whether the rest of a message with too many parts is yet to be received."""
        ...

    def next(self) -> list[bytes] | None:
        """Take out one message; None if there is none, or if the socket fails."""
        ...

    def collect(self, seconds: float) -> None:
        """Move messages from the socket to the queue, or drop them if it is full, for at most `seconds`."""
        ...

    def close(self) -> None:
        """Drop everything and receive no more."""
        ...


OpenInbox = Callable[["zmq.Socket[bytes]", Losses, int], Inbox]
"""Opens the inbox of a socket: socket, receiver of losses, and size of the messages that may wait outside of ZMQ."""

QUEUE_FULL = "queue_full"
"""Reason for which a message was dropped."""


class FrameInbox:
    """Implements `Inbox` with pyzmq, for any consumer.

    Args:
        socket: receives; closing it is left to the caller.
        losses: gets reports.
        budget: size of the messages that wait outside of ZMQ, perhaps shared with other inboxes.
    """

    def __init__(self, socket: zmq.Socket[bytes], losses: Losses, budget: ByteBudget) -> None:
        self._losses, self._budget = losses, budget
        self._part = cast("Callable[[], zmq.Frame]", partial(socket.recv, int(zmq.NOBLOCK), copy=False))
        self._queue: deque[list[bytes]] = deque()
        self._queued_bytes = 0
        self._is_closed = False
        self.native = None
        """See `Inbox.native`."""
        self.is_skipping = False
        """See `Inbox.is_skipping`."""

    def next(self) -> list[bytes] | None:
        """See `Inbox.next`."""
        if self._queue:
            frames = self._queue.popleft()
            self._count(-_size(frames))
            return frames
        return self._receive()

    def collect(self, seconds: float) -> None:
        """See `Inbox.collect`."""
        end = perf_counter() + seconds
        while perf_counter() < end:
            is_full = self._budget.is_full(self._queued_bytes)
            frames = self._receive(_SHOWN_BYTES) if is_full else self._receive()
            if frames is None:
                return
            if is_full and not self._losses.dropped(frames, QUEUE_FULL):
                continue
            self._append(frames)

    def cut(self, last: list[bytes]) -> None:
        """Receive no more from the socket; the messages that wait are still taken out, and `last` after them."""
        self._is_closed = True
        self._append(last)

    def close(self) -> None:
        """See `Inbox.close`."""
        self._is_closed = True
        self._queue.clear()
        self._count(-self._queued_bytes)

    def _append(self, frames: list[bytes]) -> None:
        self._queue.append(frames)
        self._count(_size(frames))

    def _count(self, n_bytes: int) -> None:
        self._queued_bytes += n_bytes
        self._budget.n_bytes += n_bytes

    def _receive(self, shown_bytes: float = inf) -> list[bytes] | None:
        """Receive one message. Longer parts than `shown_bytes` are empty."""
        receive = self._part
        try:
            while not self._is_closed:
                if self.is_skipping and not self._skip():
                    return None
                # a part knows whether more follow; asking the socket costs more than the copy
                part = receive()
                frames = [part.bytes if len(part) <= shown_bytes else b""]
                while part.more:
                    if len(frames) == MAX_PARTS:
                        self.is_skipping = True
                        break
                    part = receive()
                    frames.append(part.bytes if len(part) <= shown_bytes else b"")
                if not self.is_skipping:
                    return frames
                self._losses.dropped(frames, "too_many_parts")
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            self._losses.failed(error)
        return None

    def _skip(self) -> bool:
        """Receive more of the parts that are too many; return whether these were all."""
        for _ in range(_SKIPPED):
            if not self._part().more:
                self.is_skipping = False
                return True
        return False


def inbox_within(budget: ByteBudget) -> Callable[[zmq.Socket[bytes], Losses], FrameInbox]:
    """Return what opens an inbox within a budget."""
    return lambda socket, losses: FrameInbox(socket, losses, budget)


def frame_inbox(socket: zmq.Socket[bytes], losses: Losses, max_queued_bytes: int) -> FrameInbox:
    """Open an inbox with a budget of its own; see `OpenInbox`."""
    return FrameInbox(socket, losses, ByteBudget(max_queued_bytes))


def _size(frames: list[bytes]) -> int:
    return sum(map(len, frames)) + _OVERHEAD_BYTES
