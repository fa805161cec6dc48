"""Reception of one socket's messages in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import Protocol, cast

import zmq
import zmq.asyncio

from .inbox import Inbox, Losses
from .turns import Turns

_COLLECT_S = 0.002
"""Time in which messages are moved to the queue, or dropped, at the end of a turn."""

BURST_S = 0.1
"""Time in which messages may wait in ZMQ's queue. Most bursts are handled until then without being moved."""


class Taker(Losses, Protocol):
    """Consumer of a socket's messages; `failed` is also called for exceptions of `take`."""

    def take(self, frames: list[bytes]) -> None:
        """Handle a message; an exception ends neither the receiver nor the messages after it."""
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
        open_inbox: opens the inbox of the socket, in which messages wait; it reports losses to the taker.
        burst_s: time in which messages may wait in ZMQ's queue.
        run: handles messages of the inbox in one call; returns False if the next one is for the taker, or if there is none.
    """

    def __init__(
        self,
        socket: zmq.asyncio.Socket,
        turns: Turns,
        taker: Taker,
        *,
        open_inbox: Callable[[zmq.Socket[bytes], Losses], Inbox],
        burst_s: float = BURST_S,
        run: Callable[[Inbox], bool] | None = None,
    ) -> None:
        # The same socket without futures: one future costs several times as much as receiving a message.
        plain = cast("zmq.Socket[bytes]", zmq.Socket.shadow(socket))  # pyright: ignore[reportUnknownMemberType]
        self._turns, self._taker, self._run = turns, taker, run
        self.inbox, self._burst_s = open_inbox(plain, taker), burst_s
        self._is_cut = False
        self._busy_since = inf
        """Time at which the first message came that was followed by others without end."""
        self._loop = asyncio.get_running_loop()
        # ZMQ's descriptor is edge-triggered: it shows new messages only after `work` found none
        self._descriptor = plain.fileno()
        self._loop.add_reader(self._descriptor, turns.add, self)
        turns.add(self)

    def cut(self) -> None:
        """Listen to the socket no more, which may then be closed; what the inbox still gives is handled."""
        self._is_cut = True
        self._loop.remove_reader(self._descriptor)
        self._turns.add(self)

    def close(self) -> None:
        """Receive no more; call it before the socket is closed."""
        if not self._is_cut:
            self._loop.remove_reader(self._descriptor)
        self._turns.remove(self)
        self.inbox.close()

    def work(self, until: float) -> bool:
        """See `Work.work`."""
        taker, inbox = self._taker, self.inbox
        self._busy_since = min(self._busy_since, perf_counter())
        while taker.is_ready():
            try:
                if self._run is None or not self._run(inbox):
                    frames = inbox.next()
                    if frames is None:
                        self._busy_since = inf
                        return inbox.is_skipping
                    taker.take(frames)
            except Exception as error:  # noqa: BLE001 - nothing that a peer sends may end the reception
                taker.failed(error)
            if perf_counter() >= until:
                break
        if perf_counter() >= self._busy_since + self._burst_s:
            inbox.collect(_COLLECT_S)
        return True
