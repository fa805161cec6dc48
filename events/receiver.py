"""Messages of one ZMQ socket, received in turns, with a bound of what waits in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from time import perf_counter
from typing import Protocol, cast

import zmq
import zmq.asyncio

from .byte_budget import ByteBudget
from .turns import Turns

MAX_PARTS = 16
"""Parts of a message that are kept; publishers send three or four, ZMQ's questions about a peer up to ten."""

_COLLECT_S = 0.002
"""Time in which messages are moved to the queue, or dropped, at the end of a turn."""

BURST_S = 0.1
"""Time in which messages may wait in ZMQ's queue. Most bursts are handled until then without being moved."""

QUEUE_FULL = "queue_full"
"""Reason for which a message was dropped."""

_SKIPPED = 1000
"""Parts that are too many, received at once, in less than a millisecond."""

_SHOWN_BYTES = 64
"""Parts of dropped messages up to this size are kept: the end of a replay is recognized by one of eight bytes."""

_OVERHEAD_BYTES = 200
"""Memory of a waiting message beside its bytes."""


class Taker(Protocol):
    """Consumer of a socket's messages."""

    def take(self, frames: list[bytes]) -> None:
        """Handle a message; an exception ends neither the receiver nor the messages after it."""
        ...

    def failed(self, error: Exception) -> None:
        """Handle an exception of `take` or of the socket."""
        ...

    def dropped(self, frames: list[bytes], reason: str) -> bool:
        """Count a message past a limit; return whether to keep it all the same. It may call `Receiver.cut`."""
        ...

    def is_ready(self) -> bool:
        """Return whether to take a message; otherwise all wait."""
        ...


class Receiver:
    """Receives from a socket, from which nothing else may receive. Implements `turns.Work`.

    ZMQ bounds its queue in messages only. So what is left of it at the end of a turn is moved to a queue of bounded size:
    a publisher that sends faster than it is handled has its messages dropped, which shows as gaps.

    Args:
        socket: receives; closing it is left to the caller.
        turns: when to receive.
        taker: gets the messages.
        budget: size of the messages that wait outside of ZMQ, perhaps shared with other receivers.
        burst_s: time in which messages may wait in ZMQ's queue.
    """

    def __init__(
        self,
        socket: zmq.asyncio.Socket,
        turns: Turns,
        taker: Taker,
        *,
        budget: ByteBudget,
        burst_s: float = BURST_S,
    ) -> None:
        # The same socket without futures: one future costs several times as much as receiving a message.
        self._socket = cast("zmq.Socket[bytes]", zmq.Socket.shadow(socket))  # pyright: ignore[reportUnknownMemberType]
        self._turns, self._taker = turns, taker
        self._budget, self._burst_s = budget, burst_s
        self._part = cast("Callable[[], zmq.Frame]", partial(self._socket.recv, int(zmq.NOBLOCK), copy=False))
        self._queue: deque[list[bytes]] = deque()
        self._queued_bytes = 0
        self._busy_since = inf
        """Time at which the first message came that was followed by others without end."""
        self._skipping = False
        """The rest of a message with too many parts is yet to be received."""
        self._is_cut = False
        self._loop = asyncio.get_running_loop()
        # ZMQ's descriptor is edge-triggered: it shows new messages only after `work` found none
        self._descriptor = self._socket.fileno()
        self._loop.add_reader(self._descriptor, turns.add, self)
        turns.add(self)

    def cut(self, last: list[bytes]) -> None:
        """Receive no more; the messages that wait are still handled, and `last` after them. The socket may be closed."""
        self._is_cut = True
        self._loop.remove_reader(self._descriptor)
        self._append(last)
        self._turns.add(self)

    def close(self) -> None:
        """Receive no more; call it before the socket is closed."""
        if not self._is_cut:
            self._loop.remove_reader(self._descriptor)
        self._turns.remove(self)
        self._queue.clear()
        self._budget.n_bytes -= self._queued_bytes
        self._queued_bytes = 0

    def work(self, until: float) -> bool:
        """See `Work.work`."""
        taker = self._taker
        self._busy_since = min(self._busy_since, perf_counter())
        while taker.is_ready():
            frames = self._next()
            if frames is None:
                self._busy_since = inf
                return self._skipping
            try:
                taker.take(frames)
            except Exception as error:  # noqa: BLE001 - nothing that a peer sends may end the reception
                taker.failed(error)
            if perf_counter() >= until:
                break
        if perf_counter() >= self._busy_since + self._burst_s:
            self._collect()
        return True

    def _next(self) -> list[bytes] | None:
        if self._queue:
            frames = self._queue.popleft()
            self._count(-_size(frames))
            return frames
        return self._receive()

    def _append(self, frames: list[bytes]) -> None:
        self._queue.append(frames)
        self._count(_size(frames))

    def _count(self, n_bytes: int) -> None:
        self._queued_bytes += n_bytes
        self._budget.n_bytes += n_bytes

    def _collect(self) -> None:
        end = perf_counter() + _COLLECT_S
        while perf_counter() < end:
            is_full = self._budget.is_full(self._queued_bytes)
            frames = self._receive(_SHOWN_BYTES) if is_full else self._receive()
            if frames is None:
                return
            if is_full and not self._taker.dropped(frames, QUEUE_FULL):
                continue
            self._append(frames)

    def _receive(self, shown_bytes: float = inf) -> list[bytes] | None:
        """Receive one message; None if there is none, or if the socket fails. Longer parts than `shown_bytes` are empty."""
        if self._is_cut:
            return None
        receive = self._part
        try:
            while True:
                if self._skipping and not self._skip():
                    return None
                # a part knows whether more follow; asking the socket costs more than the copy
                part = receive()
                frames = [part.bytes if len(part) <= shown_bytes else b""]
                while part.more:
                    if len(frames) == MAX_PARTS:
                        self._skipping = True
                        break
                    part = receive()
                    frames.append(part.bytes if len(part) <= shown_bytes else b"")
                if not self._skipping:
                    return frames
                self._taker.dropped(frames, "too_many_parts")
        except zmq.Again:
            return None
        except zmq.ZMQError as error:
            self._taker.failed(error)
            return None

    def _skip(self) -> bool:
        """Receive more of the parts that are too many; return whether these were all."""
        for _ in range(_SKIPPED):
            if not self._part().more:
                self._skipping = False
                return True
        return False


def _size(frames: list[bytes]) -> int:
    return sum(map(len, frames)) + _OVERHEAD_BYTES
