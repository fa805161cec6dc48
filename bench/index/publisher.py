"""A process that publishes KV events on real sockets, in the form of vLLM 0.32."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from itertools import count, zip_longest
from multiprocessing.connection import Connection
from typing import Literal, Protocol

import msgspec
import zmq

from ..common.processes import child, receive
from .fleet import BLOCK_SIZE, Blocks

Phase = Literal["warm", "measured"]
PHASES: tuple[Phase, Phase] = ("warm", "measured")
"""The phase that fills the caches, and the one that counts."""

_SUBSCRIBE_TIMEOUT_MS = 60_000
_SUBSCRIBED = 1


class Stored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """A store as vLLM 0.32 publishes it, with the fields in its order."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int = BLOCK_SIZE
    lora_id: int | None = None
    medium: str = "GPU"
    lora_name: str | None = None
    extra_keys: list[None] | None = None
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"


class Removed(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    """A removal as vLLM 0.32 publishes it."""

    block_hashes: list[int]
    medium: str = "GPU"
    group_idx: int = 0


WireEvent = Stored | Removed


def stored(blocks: Blocks, medium: str = "GPU") -> Stored:
    """Return a store of `blocks`. The engine hash of a block is here its key."""
    return Stored(
        list(blocks.keys), blocks.parent, list(blocks.tokens), medium=medium, extra_keys=[None] * len(blocks)
    )


class Load(Protocol):
    """Events to publish, in two phases. Must be picklable."""

    @property
    def n_publishers(self) -> int:
        """Publishers that send at the same time."""
        ...

    def n_messages(self, phase: Phase) -> int:
        """Messages of a phase, over all publishers."""
        ...

    def messages(self, publisher: int, phase: Phase) -> list[list[WireEvent]]:
        """Event batches of one publisher in order. The last event of each phase stores `last_block`."""
        ...

    def last_block(self, phase: Phase) -> Blocks:
        """Return a block that only the end of the phase stores; a consumer that finds it has read everything."""
        ...


class Publisher:
    """The publishing process, for its parent.

    Attributes:
        addresses: of its sockets, by publisher.
    """

    def __init__(self, pipe: Connection) -> None:
        self.addresses: list[str] = receive(pipe)
        self._pipe = pipe

    def send(self, phase: Phase, *, n_subscribers: int = 1) -> None:
        """Publish a phase. The warm one first waits for `n_subscribers` new subscribers on every socket."""
        self._pipe.send((phase, n_subscribers, False))

    def send_rounds(self, phase: Phase, *, n_subscribers: int = 1) -> Iterator[None]:
        """Publish a phase; yields after one message of every publisher, and goes on when it is asked for the next."""
        self._pipe.send((phase, n_subscribers, True))
        while receive(self._pipe):
            yield
            self._pipe.send(None)

    def end(self) -> None:
        """End the process."""
        self._pipe.send(None)


@contextlib.contextmanager
def publishing(load: Load) -> Generator[Publisher]:
    """Run a process that publishes `load`, once more for each new set of subscribers."""
    with child(_publish, load) as pipe:
        publisher = Publisher(pipe)
        yield publisher
        publisher.end()


def _publish(pipe: Connection, load: Load) -> None:
    """Run the process. Its sockets queue without bound, so nothing is dropped for slow subscribers."""
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4 * load.n_publishers + 64)
    sockets = [_bind(context) for _ in range(load.n_publishers)]
    streams = {phase: [_payloads(load, n, phase) for n in range(load.n_publishers)] for phase in PHASES}
    pipe.send([str(socket.getsockopt_string(zmq.LAST_ENDPOINT)) for socket in sockets])
    numbers = [count() for _ in sockets]
    while (told := pipe.recv()) is not None:
        phase, n_subscribers, in_rounds = told
        if phase == "warm":
            numbers = [count() for _ in sockets]
            for socket in sockets:
                _wait_for_subscribers(socket, n_subscribers)
        for payloads in zip_longest(*streams[phase]):
            for socket, number, payload in zip(sockets, numbers, payloads, strict=True):
                if payload is not None:
                    seq = next(number).to_bytes(8, "big")
                    socket.send_multipart((b"kv@bench", seq, payload), copy=False)
            if in_rounds:
                pipe.send(True)
                pipe.recv()
        if in_rounds:
            pipe.send(False)
    context.destroy(linger=0)


def _payloads(load: Load, publisher: int, phase: Phase) -> list[bytes]:
    batches = load.messages(publisher, phase)
    return [msgspec.msgpack.encode([1.8e9 + n, events, 0]) for n, events in enumerate(batches)]


def _bind(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Bind an XPUB socket: a PUB that reports subscriptions, so that no message is sent before its reader is there."""
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.setsockopt(zmq.RCVTIMEO, _SUBSCRIBE_TIMEOUT_MS)
    socket.bind("tcp://127.0.0.1:*")
    return socket


def _wait_for_subscribers(socket: zmq.Socket[bytes], n_subscribers: int) -> None:
    while n_subscribers:
        n_subscribers -= socket.recv()[0] == _SUBSCRIBED
