"""A model server whose event sockets say what a test wants, without end if it wants that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq

Message = tuple[bytes, ...]
"""Sequence number and payload, or all parts after the topic."""


def message(seq: int, *, ts: float | None = None, n_bytes: int = 0) -> Message:
    """Return a batch of one removal, stamped by its number; `n_bytes` of padding in an unknown event."""
    events: list[Any] = [["BlockRemoved", [seq]]]
    if n_bytes:
        events.append(["Padding", bytes(n_bytes)])
    payload = msgspec.msgpack.encode([1000.0 + seq if ts is None else ts, events, 0])
    return seq.to_bytes(8, "big"), payload


@dataclass
class HostileEngine:
    """PUB and ROUTER sockets on 127.0.0.1.

    Attributes:
        name: of the endpoint, and in topics.
        pub: publishes.
        events: address of the PUB socket.
        replay: address of the ROUTER socket.
        answer: messages with which to answer a replay request from a number on; the end marker follows the last.
        n_replayed: messages sent in replies.
        asked: numbers from which replays were requested.
    """

    name: str
    pub: zmq.Socket[bytes]
    events: str
    replay: str
    answer: Callable[[int], Iterator[Message]]
    n_replayed: int = 0
    asked: list[int] = field(default_factory=list[int])

    @property
    def topic(self) -> bytes:
        """Topic of its messages."""
        return f"kv@{self.name}@m".encode()

    def send(self, *messages: Message) -> None:
        """Publish messages."""
        for parts in messages:
            self.pub.send_multipart([self.topic, *parts])

    def static(self) -> dict[str, Any]:
        """Return its entry in `endpoints.static`."""
        return {
            "name": self.name,
            "address": f"127.0.0.1:{self.events.rpartition(':')[2]}",
            "events": self.events,
            "replay": self.replay,
            "metrics": "",
        }


@contextmanager
def hostile_engine(
    answer: Callable[[int], Iterator[Message]], *, name: str = "hostile"
) -> Generator[HostileEngine]:
    """Run one until the block ends."""
    context = zmq.Context()
    pub, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    for socket in (pub, router):
        socket.setsockopt(zmq.LINGER, 0)
    router.setsockopt(zmq.SNDHWM, 100)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue makes it wait instead of dropping messages
    router.setsockopt(zmq.SNDTIMEO, 100)
    engine, stop = HostileEngine(name, pub, _bound(pub), _bound(router), answer), threading.Event()
    thread = threading.Thread(target=_serve, args=(engine, router, stop))
    thread.start()
    try:
        yield engine
    finally:
        stop.set()
        thread.join()
        pub.close()
        router.close()
        context.term()


def _bound(socket: zmq.Socket[bytes]) -> str:
    return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


def _serve(engine: HostileEngine, router: zmq.Socket[bytes], stop: threading.Event) -> None:
    """Answer replay requests, one reply at a time, until `stop`; the end of a peer or another request ends it."""
    while not stop.is_set():
        if not router.poll(20):
            continue
        identity, _, start = router.recv_multipart()
        engine.asked.append(int.from_bytes(start, "big"))
        for parts in engine.answer(engine.asked[-1]):
            if not _sent(router, [identity, b"", b"t", *parts], stop):
                break
            engine.n_replayed += 1
        else:
            _sent(router, [identity, b"", b"", b"\xff" * 8, b""], stop)


def _sent(router: zmq.Socket[bytes], parts: list[bytes], stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            router.send_multipart(parts)
        except zmq.Again:
            if router.poll(0):  # ZMQ notices that a peer with a full queue left only if it is read from
                return False
            continue
        except zmq.ZMQError:  # the peer is gone
            return False
        return True
    return False
