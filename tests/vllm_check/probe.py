"""A second reader of a server's events: it knows when the server is quiet, and records the events."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from pathlib import Path
from types import TracebackType
from typing import Self

import zmq
import zmq.asyncio


class Probe:
    """A second subscriber of one server, running inside `async with`; it outlives restarts of the server.

    Args:
        address: ZMQ address of the server's publisher.
        file: JSON lines it writes every message to, in the form of the recordings in tests/golden.
    """

    def __init__(self, address: str, file: Path) -> None:
        self._address = address
        self._file = file
        self._context = zmq.asyncio.Context()
        self._task: asyncio.Task[None] | None = None
        self.last_seq: int | None = None
        """Sequence number of the last batch, None before the first."""
        self.last_at = 0.0
        """Monotonic seconds when it came."""

    async def __aenter__(self) -> Self:
        socket = self._context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.subscribe(b"")
        socket.connect(self._address)
        self._task = asyncio.create_task(self._follow(socket), name=f"probe of {self._address}")
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _follow(self, socket: zmq.asyncio.Socket) -> None:
        with self._file.open("w", buffering=1) as lines:
            while True:
                frames = await socket.recv_multipart()
                self.last_at = time.monotonic()
                self.last_seq = int.from_bytes(frames[1], "big")
                row = {
                    "t": time.time(),
                    "endpoint": self._address,
                    "frames": [b64encode(frame).decode() for frame in frames],
                }
                lines.write(json.dumps(row) + "\n")
