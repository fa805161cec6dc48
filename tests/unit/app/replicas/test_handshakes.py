"""Watching of the mesh's connections, which are made again and again while a replica is away."""

from __future__ import annotations

import asyncio

import zmq
import zmq.asyncio

from kvatlas.app.replicas.handshakes import Handshakes
from kvatlas.app.replicas.transport import Traffic


async def test_connections_that_are_watched_one_after_the_other_leave_no_socket_behind() -> None:
    context, handshakes = zmq.asyncio.Context(), Handshakes(Traffic())
    context.set(zmq.MAX_SOCKETS, 8)
    try:
        for _ in range(30):
            socket = context.socket(zmq.DEALER)
            task = asyncio.create_task(handshakes.watch_line(socket))
            await asyncio.sleep(0)
            task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError)
            socket.close(linger=0)
    finally:
        context.destroy(linger=0)
