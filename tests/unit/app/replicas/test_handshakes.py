"""Watching of the mesh's connections, which are made again and again while a replica is away."""

from __future__ import annotations

import asyncio
from functools import partial

import zmq
import zmq.asyncio

from kvatlas.app.replicas.handshakes import Handshakes
from kvatlas.app.replicas.transport import Traffic
from kvatlas.events.errors import SocketLimitError
from support.waiting import until


async def was_watched(context: zmq.asyncio.Context, handshakes: Handshakes) -> bool:
    """Watch one connection for a moment; returns whether there were sockets for it."""
    try:
        socket = context.socket(zmq.DEALER)
    except zmq.ZMQError:
        return False
    task = asyncio.create_task(handshakes.watch_line(socket))
    await asyncio.sleep(0)
    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    socket.close(linger=0)
    assert isinstance(ended, asyncio.CancelledError | SocketLimitError)
    return isinstance(ended, asyncio.CancelledError)


async def test_connections_that_are_watched_one_after_the_other_leave_no_socket_behind() -> None:
    context, handshakes = zmq.asyncio.Context(), Handshakes(Traffic())
    context.set(zmq.MAX_SOCKETS, 8)
    try:
        for _ in range(30):  # a thread of the library frees what was closed, a little later
            await until(partial(was_watched, context, handshakes), what="a free socket")
    finally:
        context.destroy(linger=0)
