"""Replay: one publisher's history over its ROUTER socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio

from .errors import SubscriptionError
from .sockets import open_socket

END_OF_REPLAY = b"\xff" * 8
"""Sequence number that follows the last batch of an answer."""

_SEQ_BYTES = 8


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """Where one publisher answers replay requests.

    Each request has a DEALER socket of its own, so that late answers to an abandoned request cannot be mistaken for
    new ones.

    Attributes:
        context: owner of the sockets.
        slots: bounds the requests that are out at one time over the fleet.
        address: of the ROUTER socket.
    """

    context: zmq.asyncio.Context
    slots: asyncio.Semaphore
    address: str

    async def fetch(
        self, start: int, *, sent: Callable[[], None], take: Callable[[list[bytes]], None]
    ) -> None:
        """Hand every batch from `start` on to `take`, until the end marker; waits for ever for a server that is silent.

        Args:
            start: first sequence number asked for.
            sent: called when the request has left.
            take: called with the frames of each answer.
        """
        async with self.slots:
            # unlimited: a reply burst must not be cut on our side; the sender's buffer bounds it
            socket = open_socket(self.context, zmq.DEALER, receive_hwm=0, ipv6="[" in self.address)
            try:
                _connect(socket, self.address)
                request = [b"", start.to_bytes(_SEQ_BYTES, "big")]
                await socket.send_multipart(request)  # pyright: ignore[reportUnknownMemberType]  # pyzmq's stub
                sent()
                while True:
                    frames = await socket.recv_multipart()
                    if len(frames) >= 2 and frames[-2] == END_OF_REPLAY:
                        return
                    take(frames)
            finally:
                socket.close(linger=0)


def _connect(socket: zmq.asyncio.Socket, address: str) -> None:
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise SubscriptionError(
            f"cannot ask {address!r} for a replay: {error}; want tcp://HOST:PORT or ipc://PATH"
        ) from None
