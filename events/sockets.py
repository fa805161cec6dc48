"""ZMQ sockets of the event plane: bounded queues, quick reconnects, detection of dead peers, IPv6."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import zmq
import zmq.asyncio

from .errors import SocketLimitError
from .wire import MAX_PAYLOAD_BYTES

MAX_MESSAGE_BYTES = 2 * MAX_PAYLOAD_BYTES
"""ZMQ disconnects a peer that sends more in one message; a payload between both limits is rejected with a reason."""

_DRAIN = 64
"""Messages received from one socket before other tasks get a turn."""


def open_socket(
    context: zmq.asyncio.Context, kind: int, *, receive_hwm: int, ipv6: bool
) -> zmq.asyncio.Socket:
    """Open a socket that is neither connected nor bound.

    Args:
        context: owner of the socket.
        kind: ZMQ socket type.
        receive_hwm: messages queued before the sender drops; 0 for no bound.
        ipv6: allow IPv6 in addition to IPv4.
    Raises:
        SocketLimitError: the process or the context has too many sockets.
    """
    try:
        socket = context.socket(kind)
    except zmq.ZMQError as error:
        raise _too_many(error) from None
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, receive_hwm)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    # A restarted engine opens its event sockets shortly before it serves, and only the connection tells of its empty cache.
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)
    # A peer that vanished without closing (lost node) shows as a disconnect after 15 s. ZMQ's own heartbeats would show it too, but
    # libzmq 4.3.5 ends the process when one is due on a connection that its peer has reset while the socket's queue was full.
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 2)
    socket.setsockopt(zmq.IPV6, int(ipv6))
    return socket


def open_monitor(socket: zmq.asyncio.Socket, events: int) -> zmq.asyncio.Socket:
    """Open a socket that reports `events` of `socket`.

    Raises:
        SocketLimitError: the process or the context has too many sockets.
    """
    try:
        return socket.get_monitor_socket(events)
    except zmq.ZMQError as error:
        raise _too_many(error) from None


def bound_address(socket: zmq.asyncio.Socket) -> str:
    """Return the address at which the socket listens, with its actual port."""
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)  # noqa: S101 - the option's type
    return address.decode().rstrip("\0")


def _too_many(error: zmq.ZMQError) -> SocketLimitError:
    return SocketLimitError(
        f"cannot open another event socket: {error}; raise the limit of open files (ulimit -n)"
    )


async def receive_all(socket: zmq.asyncio.Socket, take: Callable[[list[bytes]], None]) -> None:
    """Pass every message to `take` until cancelled; a busy socket leaves turns to other tasks.

    Nothing else may receive from the socket.
    """
    # The same socket without futures: one future costs several times as much as receiving a message.
    plain = cast("zmq.Socket[bytes]", zmq.Socket.shadow(socket))  # pyright: ignore[reportUnknownMemberType]
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    # ZMQ's descriptor is edge-triggered, so the socket is emptied before each wait.
    descriptor = plain.fileno()
    loop.add_reader(descriptor, readable.set)
    try:
        while True:
            readable.clear()
            if _drain(plain, take):
                await asyncio.sleep(0)
            else:
                await readable.wait()
    finally:
        loop.remove_reader(descriptor)


def _drain(socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]) -> bool:
    """Receive at most one turn of messages; return whether there may be more."""
    for _ in range(_DRAIN):
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return False
        take(frames)
    return True
