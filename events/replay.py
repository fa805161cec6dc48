"""Replay: one publisher's history over its ROUTER socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import zmq
import zmq.asyncio

from .errors import ReplayCutError, SubscriptionError
from .limits import ReplayLimits
from .message import END_OF_REPLAY
from .receiver import Receiver, Taker
from .sockets import open_socket
from .turns import Turns

_SEQ_BYTES = 8

_QUEUED = 100_000
"""Replies that ZMQ queues; the receiver empties the queue in every turn."""


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """The ROUTER socket at which one publisher answers replay requests.

    Each request uses its own DEALER socket, so that late replies to an abandoned request cannot be taken for new ones.

    Attributes:
        context: owner of the sockets.
        turns: when to receive.
        slots: bound of the requests open at one time, over the fleet.
        limits: bounds of a reply.
        address: of the ROUTER socket.
    """

    context: zmq.asyncio.Context
    turns: Turns
    slots: asyncio.Semaphore
    limits: ReplayLimits
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
        async with self.slots:
            # far above a usual history: vLLM drops replies once our queue is full, and they have to be requested again
            socket = open_socket(self.context, zmq.DEALER, receive_hwm=_QUEUED, ipv6="[" in self.address)
            try:
                _connect(socket, self.address)
                plain = cast("zmq.Socket[bytes]", zmq.Socket.shadow(socket))  # pyright: ignore[reportUnknownMemberType]
                plain.send_multipart([b"", start.to_bytes(_SEQ_BYTES, "big")], zmq.NOBLOCK)
                sent()
                await self._receive(socket, taker)
            finally:
                socket.close(linger=0)

    async def _receive(self, socket: zmq.asyncio.Socket, taker: Taker) -> None:
        reply = _Reply(taker, self.limits.max_batches)
        receiver = Receiver(socket, self.turns, reply, max_queued_bytes=self.limits.max_queued_bytes)
        try:
            async with asyncio.timeout(self.limits.timeout_s):
                if not await reply.is_whole:
                    raise ReplayCutError(f"it has more than {self.limits.max_batches} batches")
        except TimeoutError:
            raise ReplayCutError(f"it took longer than {self.limits.timeout_s:g} s") from None
        finally:
            receiver.close()


class _Reply:
    """One reply. Implements `Taker`."""

    def __init__(self, taker: Taker, max_batches: int) -> None:
        self._taker, self._n_left = taker, max_batches
        self.is_whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.failed = taker.failed

    def take(self, frames: list[bytes]) -> None:
        if self.is_whole.done():
            return
        if _is_end(frames):
            self.is_whole.set_result(True)
        elif self._counts():
            self._taker.take(frames)

    def dropped(self, frames: list[bytes], reason: str) -> bool:
        if _is_end(frames):
            return True
        return self._counts() and self._taker.dropped(frames, reason)

    def is_ready(self) -> bool:
        return self._taker.is_ready()

    def _counts(self) -> bool:
        self._n_left -= 1
        if self._n_left < 0 and not self.is_whole.done():
            self.is_whole.set_result(False)
        return self._n_left >= 0


def _is_end(frames: list[bytes]) -> bool:
    return len(frames) >= 2 and frames[-2] == END_OF_REPLAY


def _connect(socket: zmq.asyncio.Socket, address: str) -> None:
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise SubscriptionError(
            f"cannot request a replay from {address!r}: {error}; want tcp://HOST:PORT or ipc://PATH"
        ) from None
