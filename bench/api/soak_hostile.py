"""Hostile input for `soak`: clients, an engine and peers, with the inputs of tests/hostile/generators."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import zmq
import zmq.asyncio

TESTS = Path(__file__).parents[2] / "tests"
N_AT_ONCE = 30
TYPES = (2, 3, 4, 6, 7, 8, 9, 250)
"""Types of HTTP/2 frames; without HEADERS, since a stream would have to be counted."""

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def inputs(kind: str, seed: int) -> Iterator[Any]:
    """Return the inputs that a generator makes from a seed; none if there is no such generator."""
    if not (TESTS / "hostile" / "generators" / f"{kind}.py").exists():
        return iter(())
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))
    found: Iterator[Any] = importlib.import_module(f"hostile.generators.{kind}").inputs(random.Random(seed))
    return found


class MadEngine:
    """An engine that is registered over REST, and publishes what the generator makes.

    Args:
        rest: the REST listener.
        seed: of the generator.
    """

    def __init__(self, rest: aiohttp.ClientSession, seed: int) -> None:
        self._rest, self._payloads, self._seq = rest, inputs("events", seed), 0
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._port = self._pub.bind_to_random_port("tcp://127.0.0.1")

    async def register(self) -> None:
        """Have kvatlas follow it."""
        body = {
            "instance_id": "mad",
            "endpoint": f"tcp://127.0.0.1:{self._port}",
            "modelname": "mad",
            "block_size": 4,
        }
        async with self._rest.post("/register", json=body) as answer:
            answer.raise_for_status()

    async def publish(self) -> None:
        """Publish some messages."""
        for _, payload in zip(range(N_AT_ONCE), self._payloads, strict=False):
            self._seq += 1
            number = self._seq.to_bytes(8, "big")
            await self._pub.send_multipart((b"kv@mad@m", number, payload))  # pyright: ignore[reportUnknownMemberType]  # pyzmq's stub

    def close(self) -> None:
        """Close its socket."""
        self._context.destroy(linger=0)


async def send_bodies(client: aiohttp.ClientSession, bodies: Iterator[tuple[str, bytes]]) -> int:
    """Send some hostile bodies through the gateway, and return how many."""
    n_sent = 0
    for _, (path, body) in zip(range(N_AT_ONCE), bodies, strict=False):
        n_sent += 1
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with client.post(path, data=body, headers={"content-type": "application/json"}) as answer:
                await answer.read()
    return n_sent


async def send_frames(address: tuple[str, int], rng: random.Random) -> None:
    """Open HTTP/2 connections that send frames of any type and size, but open no stream."""
    for _ in range(N_AT_ONCE):
        data = bytearray(PREFACE + b"\0\0\0\x04\0\0\0\0\0")
        for _ in range(rng.choice((1, 10, 1000))):
            size = rng.choice((0, 4, 6, 8, 100))
            data += struct.pack(">I", size)[1:] + bytes((rng.choice(TYPES), rng.randrange(256)))
            data += rng.randrange(2**31).to_bytes(4, "big") + rng.randbytes(size)
        await send_raw(address, bytes(data[: rng.randrange(len(data) + 1)]))


async def half_requests(address: tuple[str, int], rng: random.Random) -> None:
    """Open REST connections that end inside a header or body."""
    for _ in range(N_AT_ONCE):
        whole = b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
        await send_raw(address, whole[: rng.randrange(len(whole) + 1)])


async def send_raw(address: tuple[str, int], data: bytes) -> None:
    """Open a connection, send bytes, read for a moment, and close it."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await reader.read()
        finally:
            writer.close()
