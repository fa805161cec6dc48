"""Recordings of a real vLLM, and a player of their frames over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import zmq
import zmq.asyncio

END_OF_REPLAY = b"\xff" * 8

Row = TypeVar("Row", bound=msgspec.Struct)
Parts = tuple[bytes, bytes, bytes]


class Frame(msgspec.Struct, frozen=True, rename={"received_at": "t", "parts": "frames"}):
    """One recorded message: receive time (wall clock), publisher address, and the three parts."""

    received_at: float
    endpoint: str
    parts: Parts

    @property
    def seq(self) -> int:
        return int.from_bytes(self.parts[1], "big")


class AnsweredRequest(msgspec.Struct, frozen=True):
    """One request of a `*_truth.jsonl`: send time (wall clock), prompt, and the tokens found in vLLM's caches."""

    i: int
    t0: float
    model: str
    salt: str | None
    tokens: list[int]
    cached_tokens: int


def read_lines(path: Path, row: type[Row]) -> Iterator[Row]:
    """Yield the JSON objects of a recording; fields that `row` does not name are skipped."""
    with path.open("rb") as lines:
        yield from map(msgspec.json.Decoder(row).decode, lines)


def read_frames(path: Path) -> list[Frame]:
    """Return the messages of a `*_zmq.jsonl` recording, in order."""
    return list(read_lines(path, Frame))


def read_truth(path: Path) -> list[AnsweredRequest]:
    """Return the requests of a `*_truth.jsonl` recording, in order."""
    return list(read_lines(path, AnsweredRequest))


async def send(socket: zmq.asyncio.Socket, parts: Sequence[bytes]) -> None:
    """Send one message."""
    await socket.send_multipart(parts)  # pyright: ignore[reportUnknownMemberType]  # pyzmq's stub


@dataclass
class Player:
    """A real XPUB and a real ROUTER socket that send the given messages, byte for byte.

    Attributes:
        events: address of the XPUB socket.
        replay: address of the ROUTER socket.
        history: messages that the ROUTER replays; tests may cut it.
        asked: first sequence numbers of the replay requests answered.
        n_subscribed: subscriptions that have come; what is sent before the first is lost.
        close: closes both sockets, as a dying engine does; safe to call twice.
    """

    events: str
    replay: str
    pub: zmq.asyncio.Socket
    history: list[Parts] = field(default_factory=list[Parts])
    asked: list[int] = field(default_factory=list[int])
    n_subscribed: int = 0
    close: Callable[[], None] = lambda: None

    async def publish(self, *frames: Frame) -> None:
        """Publish recorded messages and keep them for replay."""
        for frame in frames:
            await self.send(frame.parts)

    async def send(self, parts: Parts) -> None:
        """Publish one message and keep it for replay."""
        self.history.append(parts)
        await send(self.pub, parts)

    async def count_subscriptions(self) -> None:
        """Count subscriptions, until cancelled."""
        while True:
            is_new = (await self.pub.recv())[:1] == b"\x01"  # pyright: ignore[reportUnknownMemberType]  # pyzmq's stub
            self.n_subscribed += is_new

    async def answer(self, router: zmq.asyncio.Socket) -> None:
        """Answer replay requests as vLLM 0.26 and later do, until cancelled."""
        while True:
            identity, _, start = await router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for topic, seq, payload in list(self.history):
                if int.from_bytes(seq, "big") >= self.asked[-1]:
                    await send(router, (identity, b"", topic, seq, payload))
            await send(router, (identity, b"", b"", END_OF_REPLAY, b""))


@contextlib.asynccontextmanager
async def player(
    *, port: int = 0, replay_port: int = 0, connect: str | None = None
) -> AsyncGenerator[Player]:
    """Run a player on 127.0.0.1, on free ports if they are 0; with `connect` its XPUB socket connects there."""
    context = zmq.asyncio.Context()
    pub, router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
    pub.setsockopt(zmq.XPUB_VERBOSE, 1)
    if connect is None:
        pub.bind(f"tcp://127.0.0.1:{port or '*'}")
    else:
        pub.setsockopt(zmq.IPV6, 1)
        pub.connect(connect)
    router.bind(f"tcp://127.0.0.1:{replay_port or '*'}")
    playing = Player(connect or _address(pub), _address(router), pub)
    tasks = [asyncio.create_task(each) for each in (playing.answer(router), playing.count_subscriptions())]

    def close() -> None:
        for task in tasks:
            task.cancel()
        context.destroy(linger=0)

    playing.close = close
    try:
        yield playing
    finally:
        close()
        await asyncio.gather(*tasks, return_exceptions=True)


def _address(socket: zmq.asyncio.Socket) -> str:
    """Return the bound address of the socket."""
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.decode().rstrip("\0")
