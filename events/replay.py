"""Replay: one publisher's history over its ROUTER socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import zmq
import zmq.asyncio

from .byte_budget import ByteBudget
from .errors import ReplayCutError, SubscriptionError
from .inbox import QUEUE_FULL, FrameInbox
from .limits import ReplayLimits
from .message import END_OF_REPLAY, MAX_SEQ
from .receiver import Receiver, Taker
from .sockets import open_socket
from .turns import Turns

_SEQ_BYTES = 8

_QUEUED = 100_000
"""Messages that ZMQ queues; the receiver empties the queue in every turn."""

_FEWEST_QUEUED = 4
"""The same at least for the rest of a reply that was broken off, whose share of the budget is shorter than a message."""

_END = [END_OF_REPLAY, b""]


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """The ROUTER socket at which one publisher answers replay requests.

    Each request uses its own DEALER socket, so that late replies to an abandoned request cannot be taken for new ones.
    A publisher sends all that it has, and nothing can slow it down: ZMQ would drop what its queue cannot hold, the end
    marker included. So a reply for which `budget` has no room is broken off, and its rest requested once its beginning
    is applied.

    Attributes:
        context: owner of the sockets.
        turns: when to receive.
        slots: bound of the requests open at one time, over the fleet.
        limits: bounds of a reply.
        budget: bytes of all replies that were received and not applied.
        address: of the ROUTER socket.
    """

    context: zmq.asyncio.Context
    turns: Turns
    slots: asyncio.Semaphore
    limits: ReplayLimits
    budget: ByteBudget
    address: str

    async def fetch(self, start: int, *, sent: Callable[[], None], taker: Taker) -> None:
        """Pass every batch from `start` on to `taker`, until the end marker.

        Args:
            start: first sequence number requested.
            sent: called once the request was sent.
            taker: gets the frames of each reply.
        Raises:
            ReplayCutError: the reply is longer than allowed, or takes longer.
            SubscriptionError: ZMQ cannot use the address, or too many sockets are open.
        """
        reply = _Reply(taker, self.limits.max_batches, start)
        async with self.slots:
            try:
                async with asyncio.timeout(self.limits.timeout_s):
                    while reply.has_rest:
                        await self._request(reply, sent)
            except TimeoutError:
                raise ReplayCutError(f"it took longer than {self.limits.timeout_s:g} s") from None

    async def _request(self, reply: _Reply, sent: Callable[[], None]) -> None:
        """Request the rest, and pass it on until its end or the break."""
        # far above a usual history: vLLM drops replies once our queue is full, and they have to be requested again
        n_queued = _QUEUED
        if reply.mean_bytes:  # it was broken off: the queue holds as much as the budget allows
            n_queued = max(_FEWEST_QUEUED, min(n_queued, self.budget.own_bytes // reply.mean_bytes))
        socket = open_socket(self.context, zmq.DEALER, receive_hwm=n_queued, ipv6="[" in self.address)
        try:
            _connect(socket, self.address)
            plain = cast("zmq.Socket[bytes]", zmq.Socket.shadow(socket))  # pyright: ignore[reportUnknownMemberType]
            plain.send_multipart([b"", reply.next.to_bytes(_SEQ_BYTES, "big")], zmq.NOBLOCK)
            sent()
            await self._receive(socket, FrameInbox(plain, reply, self.budget), reply)
        finally:
            socket.close(linger=0)

    async def _receive(self, socket: zmq.asyncio.Socket, inbox: FrameInbox, reply: _Reply) -> None:
        def break_off() -> None:
            receiver.cut()
            inbox.cut(_END)
            socket.close(linger=0)

        is_whole = reply.expect(break_off)
        receiver = Receiver(socket, self.turns, reply, open_inbox=lambda _socket, _losses: inbox, burst_s=0.0)
        try:
            if not await is_whole:
                raise ReplayCutError(f"it has more than {self.limits.max_batches} batches")
        finally:
            receiver.close()


class _Reply:
    """One reply, in parts if it is broken off. Implements `Taker`.

    Attributes:
        has_rest: whether a part is yet to be requested.
        next: the number from which on.
        mean_bytes: of the messages taken, 0 before the first.
    """

    def __init__(self, taker: Taker, max_batches: int, start: int) -> None:
        self._taker, self._n_left = taker, max_batches
        self.has_rest, self.next = True, start
        self._n_taken = self._n_bytes = 0
        self.failed = taker.failed

    def expect(self, break_off: Callable[[], None]) -> asyncio.Future[bool]:
        """Expect a part; the result is whether it came to its end, or else the reply has too many batches.

        Args:
            break_off: receives no more of it, and ends it behind what waits.
        """
        self.has_rest, self._break_off = False, break_off
        self._is_whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return self._is_whole

    @property
    def mean_bytes(self) -> int:
        return self._n_bytes // max(1, self._n_taken)

    def take(self, frames: list[bytes]) -> None:
        if self._is_whole.done():
            return
        if _is_end(frames):
            self._is_whole.set_result(True)
        elif self._counts():
            self._n_taken += 1
            self._n_bytes += sum(map(len, frames))
            self.next = max(self.next, _number(frames) + 1)
            self._taker.take(frames)

    def dropped(self, frames: list[bytes], reason: str) -> bool:
        if _is_end(frames):
            return True
        if reason == QUEUE_FULL:
            self.has_rest = True
            self._break_off()
            self._taker.dropped(frames, "replays_full")
            return False
        return self._counts() and self._taker.dropped(frames, reason)

    def is_ready(self) -> bool:
        return self._taker.is_ready()

    def _counts(self) -> bool:
        self._n_left -= 1
        if self._n_left < 0 and not self._is_whole.done():
            self._is_whole.set_result(False)
        return self._n_left >= 0


def _number(frames: list[bytes]) -> int:
    """Return the number of a batch, -1 if it has none that is possible."""
    seq = int.from_bytes(frames[-2][:_SEQ_BYTES], "big") if len(frames) >= 2 else -1
    return seq if seq < MAX_SEQ else -1


def _is_end(frames: list[bytes]) -> bool:
    return len(frames) >= 2 and frames[-2] == END_OF_REPLAY


def _connect(socket: zmq.asyncio.Socket, address: str) -> None:
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise SubscriptionError(
            f"cannot request a replay from {address!r}: {error}; want tcp://HOST:PORT or ipc://PATH"
        ) from None
