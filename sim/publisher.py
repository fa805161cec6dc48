"""The ZMQ side of a simulated engine: PUB for live batches, ROUTER for replay, as vLLM 0.32 does it."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio

from .faults import NO_EVENT_FAULTS, EventFaults, FaultyStream, Message
from .kv_events import EventBatch

BUFFERED_BATCHES = 10_000
"""vLLM's default `buffer_steps`."""

HIGH_WATER_MARK = 100_000
"""vLLM's default `hwm` of the PUB socket. The ROUTER keeps libzmq's 1000, and silently drops beyond it, as vLLM's."""

END_OF_REPLAY = b"\xff" * 8


class Publisher:
    """Publishes event batches of one engine and answers replay requests; sequence numbers start at 0.

    Args:
        topic: first frame of every message.
        host: address both sockets bind on.
        port: of the PUB socket; 0 takes a free one.
        replay_port: of the ROUTER socket; 0 takes a free one.
        buffer_size: batches kept for replay.
        faults: what happens to live batches.
        rng: draws for them.
    """

    def __init__(
        self,
        topic: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        replay_port: int = 0,
        buffer_size: int = BUFFERED_BATCHES,
        faults: EventFaults = NO_EVENT_FAULTS,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._stream, self._lag_s = FaultyStream(faults, rng), faults.lag_s
        self._topic = topic.encode()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_size)
        self._next_seq = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._context = zmq.asyncio.Context()
        self._pub = zmq.Context(self._context).socket(zmq.PUB)
        self._pub.set_hwm(HIGH_WATER_MARK)
        self._router = self._context.socket(zmq.ROUTER)
        self.port = _bind(self._pub, host, port)
        self.replay_port = _bind(self._router, host, replay_port)

    def publish(self, batch: EventBatch) -> None:
        """Send one batch to whoever is subscribed; never blocks, a slow subscriber loses it."""
        seq, payload = self._next_seq, self._encoder.encode(batch)
        self._next_seq += 1
        self._buffer.append((seq, payload))
        for message in self._stream.send((self._topic, seq.to_bytes(8, "big"), payload)):
            if self._lag_s:
                asyncio.get_running_loop().call_later(self._lag_s, self._send, message)
            else:
                self._send(message)

    async def serve_replay(self) -> None:
        """Answer replay requests until cancelled; a request that is not [identity, empty, start] is ignored."""
        while True:
            frames: list[bytes] = await self._router.recv_multipart()
            if len(frames) != 3:
                continue
            identity, _empty, start = frames
            first = int.from_bytes(start, "big")
            for seq, payload in tuple(self._buffer):
                if seq >= first:
                    await self._reply(identity, b"", self._topic, seq.to_bytes(8, "big"), payload)
            await self._reply(identity, b"", b"", END_OF_REPLAY, b"")

    def close(self) -> None:
        """Close both sockets; what was not sent is lost."""
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._context.term()

    def _send(self, message: Message) -> None:
        if not self._pub.closed:  # a late message of a server that has stopped
            self._pub.send_multipart(message)

    async def _reply(self, *frames: bytes) -> None:
        await self._router.send_multipart(frames)  # pyright: ignore[reportUnknownMemberType]  # pyzmq's stub


def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, host: str, port: int) -> int:
    if port:
        socket.bind(f"tcp://{host}:{port}")
        return port
    return socket.bind_to_random_port(f"tcp://{host}")
