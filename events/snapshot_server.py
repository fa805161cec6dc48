"""Snapshots: all that one publisher holds, from a socket of its own."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import zmq
import zmq.asyncio

from .errors import SnapshotError, SubscriptionError
from .limits import SnapshotLimits
from .snapshot_message import REQUEST, SnapshotReply, read_reply
from .sockets import open_socket
from .turns import TURN_S


@dataclass(frozen=True, slots=True)
class SnapshotServer:
    """The ROUTER socket at which one publisher answers requests for snapshots.

    Attributes:
        context: owner of the sockets.
        slots: bound of the snapshots that are fetched or applied at one time, over the fleet.
        limits: bounds of a reply.
        address: of the ROUTER socket.
    """

    context: zmq.asyncio.Context
    slots: asyncio.Semaphore
    limits: SnapshotLimits
    address: str

    async def fetch(self) -> SnapshotReply:
        """Request and return a snapshot, with a socket of its own.

        Raises:
            SnapshotError: `malformed`, `unavailable`, `timeout`, `too_large`, or `transport` if ZMQ cannot use the address.
        """
        try:
            socket = open_socket(self.context, zmq.DEALER, receive_hwm=1, ipv6="[" in self.address)
        except SubscriptionError as error:
            raise SnapshotError("transport", str(error)) from None
        try:
            socket.setsockopt(zmq.MAXMSGSIZE, self.limits.max_payload_bytes)
            socket.connect(self.address)
            async with asyncio.timeout(self.limits.timeout_s):
                frames = await self._request(socket)
        except TimeoutError:
            raise SnapshotError("timeout", f"no reply within {self.limits.timeout_s:g} s") from None
        except zmq.ZMQError as error:
            raise SnapshotError("transport", f"{error}; want tcp://HOST:PORT or ipc://PATH") from None
        finally:
            socket.close(linger=0)
        return read_reply(frames)

    async def _request(self, socket: zmq.asyncio.Socket) -> list[bytes]:
        """Return the parts of the reply; other tasks get turns between them."""
        plain = cast("zmq.Socket[bytes]", zmq.Socket.shadow(socket))  # pyright: ignore[reportUnknownMemberType]
        plain.send_multipart([b"", REQUEST], zmq.NOBLOCK)
        while not await socket.poll():
            pass
        n_bytes, frames, until = 0, list[bytes](), perf_counter() + TURN_S
        plain.recv(zmq.NOBLOCK)  # the empty part; ZMQ has all parts of a message or none
        while plain.getsockopt(zmq.RCVMORE):
            frames.append(plain.recv(zmq.NOBLOCK))
            n_bytes += len(frames[-1])
            if n_bytes > self.limits.max_bytes or len(frames) > self.limits.max_payloads:
                raise SnapshotError(
                    "too_large", f"the reply has more than {self.limits.max_bytes} bytes or "
                    f"{self.limits.max_payloads} parts",
                )  # fmt: skip
            if perf_counter() >= until:
                await asyncio.sleep(0)
                until = perf_counter() + TURN_S
        return frames
