"""Sockets of the event plane, and what engines do to them."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest
import zmq
import zmq.asyncio

from support import held_subscriber
from support.cable import Cable
from support.waiting import until


@pytest.mark.slow
async def test_process_that_stood_still_survives_that_an_engine_went_meanwhile() -> None:
    context = zmq.asyncio.Context()
    publisher = context.socket(zmq.PUB)
    publisher.setsockopt(zmq.SNDHWM, 0)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    cable = Cable(f"tcp://127.0.0.1:{port}")
    server = await asyncio.start_server(cable.pass_on, "127.0.0.1", 0)
    address = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    held = await asyncio.create_subprocess_exec(
        sys.executable, held_subscriber.__file__, address, stdin=PIPE, stdout=PIPE
    )
    assert held.stdin is not None
    assert held.stdout is not None
    holds = asyncio.create_task(held.stdout.readline())

    async def is_heard() -> bool:
        await publisher.send(b"hello")
        return holds.done()

    await until(is_heard, what="the subscriber")
    for _ in range(10 * held_subscriber.QUEUED):  # its queue is full before the connection ends
        await publisher.send(b"x" * 500)
    await until(lambda: cable.n_bytes > 5000 * held_subscriber.QUEUED, what="bytes under way")
    cable.reset()
    server.close()
    held.stdin.write(b"\n")
    assert await held.wait() == 0
    await cable.close()
    context.destroy(linger=0)
