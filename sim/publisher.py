"""The ZMQ sockets of a simulated engine: PUB for live batches, ROUTER for replay, as in vLLM 0.32.

With snapshots (vLLM #57789) there is another ROUTER, the numbers of live batches are followed by an id of the publisher's
life, and an idle publisher sends empty batches.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections import deque
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio

from .faults import NO_EVENT_FAULTS, EventFaults, FaultyStream, Message
from .kv_events import EventBatch
from .snapshot import Recorder

BUFFERED_BATCHES = 10_000
"""vLLM's default `buffer_steps`."""

HIGH_WATER_MARK = 100_000
"""vLLM's default `hwm` of the PUB socket. As in vLLM, the ROUTER keeps libzmq's 1000 and silently drops messages beyond."""

END_OF_REPLAY = b"\xff" * 8

HEARTBEAT_S = 1.0
"""Silence after which a publisher with snapshots sends an empty batch."""


_POLL_MS = 250
"""Wait for requests for snapshots between two looks at the silence."""


class Publisher:
    """Publisher of one engine's event batches, with replay; sequence numbers start at 0.

    Args:
        topic: first frame of each message.
        host: address to which both sockets bind.
        port: of the PUB socket; 0 takes a free port.
        replay_port: of the ROUTER socket; 0 takes a free port.
        snapshots: whether it has a socket for snapshots, on a free port.
        buffer_size: number of batches kept for replay.
        faults: injected into the live batches.
        rng: random numbers for the faults.

    Attributes:
        recorder: what snapshots are made from, None without snapshots.
        life: the id behind each number, empty without snapshots.
    """

    def __init__(
        self,
        topic: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        replay_port: int = 0,
        snapshots: bool = False,
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
        self.recorder = Recorder() if snapshots else None
        self.life = uuid.uuid4().bytes if snapshots else b""
        self._snapshots = self._context.socket(zmq.ROUTER)
        self.snapshot_port = _bind(self._snapshots, host, 0) if snapshots else None
        self._sent_at = time.monotonic()

    def publish(self, batch: EventBatch) -> None:
        """Send one batch to all subscribers; never blocks, so a slow subscriber loses it."""
        seq, payload = self._next_seq, self.encoded(batch)
        self._next_seq += 1
        self._sent_at = time.monotonic()
        if self.recorder is not None:
            self.recorder.record(batch.events)
        self._buffer.append((seq, payload))
        for message in self._stream.send((self._topic, seq.to_bytes(8, "big") + self.life, payload)):
            if self._lag_s:
                asyncio.get_running_loop().call_later(self._lag_s, self._send, message)
            else:
                self._send(message)

    def encoded(self, batch: EventBatch) -> bytes:
        """Return the payload of a batch."""
        return self._encoder.encode(batch)

    async def serve_replay(self) -> None:
        """Serve replay requests until cancelled; a request other than [identity, empty, start] is ignored."""
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

    async def serve_snapshots(self) -> None:
        """Answer requests for snapshots, and send heartbeats, until cancelled; a request without an empty part is ignored."""
        while self.recorder is not None:
            if await self._snapshots.poll(_POLL_MS):
                frames: list[bytes] = await self._snapshots.recv_multipart()
                if b"" in frames:
                    await self._answer(frames[: frames.index(b"") + 1], self.recorder)
            if time.monotonic() - self._sent_at >= HEARTBEAT_S:
                self.publish(EventBatch(ts=time.time(), events=()))

    async def _answer(self, envelope: list[bytes], recorder: Recorder) -> None:
        last_seq = -2 if recorder.has_failed else self._next_seq - 1
        payloads = [
            self._encoder.encode(EventBatch(ts=time.time(), events=events)) for events in recorder.chunks()
        ]
        number = last_seq.to_bytes(8, "big", signed=True)
        await self._snapshots.send_multipart([*envelope, number, self.life, *payloads])  # pyright: ignore[reportUnknownMemberType]

    def close(self) -> None:
        """Close the sockets; unsent messages are lost."""
        self._pub.close(linger=0)
        self._snapshots.close(linger=0)
        self._router.close(linger=0)
        self._context.term()

    def _send(self, message: Message) -> None:
        if not self._pub.closed:  # closed if a delayed message outlives its server
            self._pub.send_multipart(message)

    async def _reply(self, *frames: bytes) -> None:
        await self._router.send_multipart(frames)  # pyright: ignore[reportUnknownMemberType]  # pyzmq's stub


def _bind(socket: zmq.Socket[bytes] | zmq.asyncio.Socket, host: str, port: int) -> int:
    if port:
        socket.bind(f"tcp://{host}:{port}")
        return port
    return socket.bind_to_random_port(f"tcp://{host}")
