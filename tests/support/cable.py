"""A TCP connection that a test can cut or reset."""

from __future__ import annotations

import asyncio
import socket
import struct


class Cable:
    """A TCP connection between two nodes, which can be cut without that either end is told."""

    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])
        self.is_cut = False
        self._here: list[asyncio.StreamWriter] = []
        self.n_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._here.append(writer)
        there = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, there[1]), (there[0], writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def reset(self) -> None:
        """End the connections as a host does that knows nothing of them."""
        for each in self._here:
            each.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            each.transport.abort()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.is_cut:
                    target.write(data)
                    self.n_bytes += len(data)
        except OSError:
            pass
        finally:
            target.close()
