"""A client of HTTP/2 that writes frames as they come, right or wrong, and reads the server's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from support.ext_proc_client import MAX_WINDOW, METHOD, PREFACE, Frame, header_block
from support.http2 import frame, framed
from support.waiting import until

HEALTH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
STREAM_WINDOW = 1 << 20
"""First window of a stream, as the server grants it."""


@dataclass
class Peer:
    """One connection.

    Attributes:
        frames: type of frame and stream -> frames received.
        payloads: what came on each stream, headers and data together.
        error: code of the GOAWAY; None before one.
        is_over: whether the server has closed the connection.
    """

    writer: asyncio.StreamWriter
    frames: Counter[tuple[int, int]] = field(default_factory=Counter[tuple[int, int]])
    payloads: dict[int, bytes] = field(default_factory=dict[int, bytes])
    error: int | None = None
    is_over: bool = False
    n_pongs: int = 0

    def write(self, data: bytes) -> None:
        """Write frames; a connection that is over takes nothing."""
        if not self.writer.is_closing():
            self.writer.write(data)

    def ping(self) -> None:
        """Ask for a pong, which comes after everything before it was taken."""
        self.write(frame(Frame.PING, bytes(8), 0, 0))

    async def ponged(self) -> None:
        """Wait until everything written was taken."""
        self.ping()
        wanted = self.n_pongs + 1
        await until(lambda: self.n_pongs >= wanted or self.is_over, what="the pong")

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Take frames until the end."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(9)
                kind, stream = head[3], int.from_bytes(head[5:9])
                payload = await reader.readexactly(int.from_bytes(head[:3]))
                self.frames[kind, stream] += 1
                if kind in {Frame.DATA, Frame.HEADERS}:
                    self.payloads[stream] = self.payloads.get(stream, b"") + payload
                elif kind == Frame.SETTINGS and not head[4]:
                    self.write(frame(Frame.SETTINGS, b"", 1, 0))
                elif kind == Frame.PING and head[4]:
                    self.n_pongs += 1
                elif kind == Frame.GOAWAY:
                    self.error = int.from_bytes(payload[4:8])
        self.is_over = True


@contextlib.asynccontextmanager
async def peer_of(port: int, *, window: int = MAX_WINDOW, greets: bool = True) -> AsyncGenerator[Peer]:
    """Open a connection to a server on this machine; `window` is that of each stream, for the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    peer = Peer(writer)
    if greets:
        peer.write(PREFACE + frame(Frame.SETTINGS, struct.pack(">HI", 4, window), 0, 0))
    reading = asyncio.create_task(peer.read(reader))
    try:
        if greets:  # the server's windows count from the acknowledgement on
            await until(lambda: peer.frames[Frame.SETTINGS, 0] or peer.is_over, what="the greeting")
        yield peer
    finally:
        writer.close()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def flood(port: int, frames: bytes) -> None:
    """Write frames on a connection of its own, and return when the server has taken them or closed the connection.

    Threads do it, which leave the loop to others whatever comes back.
    """
    end = b"the end!"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        greeting = PREFACE + frame(Frame.SETTINGS, b"", 0, 0) + frame(Frame.SETTINGS, b"", 1, 0)
        writing = asyncio.to_thread(_write, connection, greeting + frames + frame(Frame.PING, end, 0, 0))
        await asyncio.gather(writing, asyncio.to_thread(_read_until, connection, end))


def _write(connection: socket.socket, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)


def _read_until(connection: socket.socket, end: bytes) -> None:
    rest = b""
    with contextlib.suppress(ConnectionError):
        while end not in rest and (more := connection.recv(1 << 20)):
            rest = rest[-len(end) :] + more


def opening(stream: int, path: str = METHOD, *, ends: bool = False) -> bytes:
    """Return the frame that opens a call."""
    return frame(Frame.HEADERS, header_block("localhost", path), 4 | ends, stream)


def data(stream: int, payload: bytes) -> bytes:
    """Return frames with data, as long as frames may be."""
    pieces = [payload[at : at + 16_384] for at in range(0, len(payload), 16_384)]
    return b"".join(frame(Frame.DATA, piece, 0, stream) for piece in pieces)


def reset(stream: int) -> bytes:
    """Return the frame that gives a call up."""
    return frame(Frame.RST_STREAM, (8).to_bytes(4), 0, stream)


def repeated(message: bytes, n_bytes: int) -> bytes:
    """Return as many gRPC messages as fit into that many bytes."""
    one = framed(message)
    return one * (n_bytes // len(one))


def streams(n: int, make: Callable[[int], bytes], *, first: int = 1) -> bytes:
    """Return what `make` returns for each of n streams."""
    return b"".join(make(stream) for stream in range(first, first + 2 * n, 2))
