"""Replay: one publisher's history over its ROUTER socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import zmq
import zmq.asyncio

from .errors import SubscriptionError
from .message import END_OF_REPLAY
from .sockets import open_socket

_SEQ_BYTES = 8


@dataclass(frozen=True, slots=True)
class ReplayServer:
    """The ROUTER socket at which one publisher answers replay requests.

    Each request uses its own DEALER socket, so that late replies to an abandoned request cannot be taken for new ones.

    Attributes:
        context: owner of the sockets.
        slots: bound of the requests open at one time, over the fleet.
        address: of the ROUTER socket.
    """

    context: zmq.asyncio.Context
    slots: asyncio.Semaphore
    address: str

    async def fetch(
        self, start: int, *, sent: Callable[[], None], take: Callable[[list[bytes]], None]
    ) -> None:
        """Pass every batch from `start` on to `take`, until the end marker; a silent server makes it wait for ever.

        Args:
            start: first sequence number requested.
            sent: called once the request was sent.
            take: called with the frames of each reply.
        """
        async with self.slots:
            # unlimited: a burst of replies must not be cut on our side; the sender's buffer bounds it
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
            f"cannot request a replay from {address!r}: {error}; want tcp://HOST:PORT or ipc://PATH"
        ) from None
