"""Program: a subscriber that stands still, with a full queue, once a line comes; it ends well or is ended."""

from __future__ import annotations

import asyncio
import sys
import time

import zmq
import zmq.asyncio

from kvatlas.events.sockets import open_socket

QUEUED = 100
HELD_S = 6.0
"""Longer than any timer of a connection that could run out meanwhile."""


async def main(address: str) -> None:
    context = zmq.asyncio.Context()
    subscriber = open_socket(context, zmq.SUB, receive_hwm=QUEUED, ipv6=False)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    subscriber.connect(address)
    await subscriber.recv_multipart()
    print("holds", flush=True)  # noqa: T201
    sys.stdin.readline()
    time.sleep(HELD_S)  # noqa: ASYNC251
    context.destroy(linger=0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
