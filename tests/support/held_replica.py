"""Program: a mesh that connects to an address and then stands still, with a full queue, until a line comes; it ends well or is ended."""

from __future__ import annotations

import asyncio
import sys
import time

from kvatlas.app.replicas.discovery import listed
from kvatlas.app.replicas.mesh import Mesh, MeshOptions

HELD_S = 1.5
"""Longer than any timer of a connection that could run out meanwhile."""


async def main(address: str) -> None:
    heard = asyncio.Event()
    options = MeshOptions(listen="tcp://127.0.0.1:0", discover=listed([address]))
    mesh = Mesh(options, replica="held", on_message=lambda _: heard.set())
    running = asyncio.create_task(mesh.run())
    await heard.wait()
    print("holds", flush=True)  # noqa: T201
    sys.stdin.readline()  # it is to stand still
    time.sleep(HELD_S)  # noqa: ASYNC251
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await mesh.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
