"""The ZMQ shell of the event plane: sockets and time on one side, `PublisherStream` in the middle, a sink on the other.

One SUB socket a publisher, because a batch does not say where it came from; replay goes over a DEALER socket made for
each request, so that late answers to an abandoned request cannot be mistaken for new ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Protocol

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from .errors import FrameError, SubscriptionError, WireError
from .model import EventBatch
from .stream import Action, Apply, PublisherStream, RequestReplay, Reset, StreamLimits, Trust
from .wire import decode_batch

log = logging.getLogger(__name__)

_END_OF_REPLAY = b"\xff" * 8
_SEQ_BYTES = 8
_DRAIN = 64
"""Messages taken from one socket before other tasks get a turn."""


class EventSink(Protocol):
    """Receives what one publisher says, in order, on the event loop's thread."""

    def apply(self, batch: EventBatch, *, live: bool) -> None:
        """A batch, each once; `live` unless it came by replay."""
        ...

    def reset(self, reason: str) -> None:
        """The publisher began a new life."""
        ...

    def rejected(self, reason: str) -> None:
        """Something unreadable came; `reason` is one bounded word."""
        ...

    def trust_changed(self, old: Trust, new: Trust) -> None:
        """Belief in the publisher's state changed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """Settings shared by all subscriptions.

    Attributes:
        topic_prefix: ZMQ subscription prefix.
        receive_hwm: messages a socket queues before the sender's drop; a loss shows as a gap.
        max_concurrent_replays: replay requests out at one time over the fleet.
        recheck_s: time after a connection at which to look for batches lost while the subscription travelled.
        idle_check_s: silence after which to look for missed batches.
        tick_s: resolution of time-outs.
    """

    topic_prefix: str = ""
    receive_hwm: int = 100_000
    max_concurrent_replays: int = 8
    recheck_s: float = 1.0
    idle_check_s: float = 10.0
    tick_s: float = 0.2
    limits: StreamLimits = field(default_factory=StreamLimits)


class Subscriber:
    """Subscriptions to any number of publishers on one event loop."""

    def __init__(self, options: SubscriberOptions | None = None) -> None:
        self._options = options or SubscriberOptions()
        self._context = zmq.asyncio.Context()
        self._context.set(zmq.MAX_SOCKETS, 65_000)
        self._slots = asyncio.Semaphore(self._options.max_concurrent_replays)
        self._subscriptions: set[Subscription] = set()
        self._ticker: asyncio.Task[None] | None = None

    def subscribe(self, events: str, replay: str | None, sink: EventSink) -> Subscription:
        """Follow one publisher from now on; connecting goes on in the background.

        Args:
            events: address of its PUB socket, `tcp://HOST:PORT`.
            replay: address of its ROUTER socket, None when it has none.
            sink: receives the batches.
        Raises:
            SubscriptionError: an address that ZMQ cannot use.
        """
        subscription = Subscription(self._context, self._slots, self._options, events, replay, sink)
        self._subscriptions.add(subscription)
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick(), name="events-ticker")
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Stop following; after this nothing of the publisher reaches its sink."""
        self._subscriptions.discard(subscription)
        await subscription.close()

    async def close(self) -> None:
        """Stop everything."""
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
        for subscription in list(self._subscriptions):
            await self.unsubscribe(subscription)
        self._context.destroy(linger=0)

    async def _tick(self) -> None:
        while True:
            # jitter, so that a fleet that came up together does not ask for replays together for ever
            await asyncio.sleep(self._options.tick_s * (0.75 + random.random() / 2))
            for subscription in list(self._subscriptions):
                subscription.tick()


class Subscription:
    """One publisher's sockets and stream. Made by `Subscriber.subscribe`."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        slots: asyncio.Semaphore,
        options: SubscriberOptions,
        events: str,
        replay: str | None,
        sink: EventSink,
    ) -> None:
        self.events, self.replay = events, replay
        self.stream: PublisherStream[EventBatch] = PublisherStream(
            can_replay=replay is not None, limits=options.limits
        )
        self._context, self._slots, self._options, self._sink = context, slots, options, sink
        self._trust = self.stream.trust
        self._check_at: float | None = None
        self._replay_task: asyncio.Task[None] | None = None
        self._socket = _open(context, zmq.SUB, events, options.receive_hwm)
        self._socket.subscribe(options.topic_prefix)
        wanted = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(wanted)
        self._connect()
        self._tasks = [self._spawn(self._receive()), self._spawn(self._watch())]

    def tick(self) -> None:
        """Let time pass: replay time-outs, and looks at publishers that have been silent."""
        now = self._now()
        if self.stream.awaits_replay:
            self._do(self.stream.tick(now=now))
        elif self._check_at is not None and now >= self._check_at:
            self._check_at = now + self._options.idle_check_s
            self._do(self.stream.check())

    def restarted(self, reason: str) -> None:
        """Evidence from elsewhere that the publisher began a new life."""
        self._do(self.stream.restarted(reason))

    async def close(self) -> None:
        """Stop the tasks and close the sockets."""
        tasks = [*self._tasks, *([self._replay_task] if self._replay_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close_sockets()

    # -- live -----------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            self._socket.connect(self.events)
        except zmq.ZMQError as error:
            self._close_sockets()
            raise SubscriptionError(
                f"cannot subscribe to {self.events!r}: {error}; want tcp://HOST:PORT or ipc://PATH"
            ) from None

    def _close_sockets(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            for _ in range(_DRAIN):
                self._take_live(frames)
                try:
                    frames = await self._socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
            else:
                self._take_live(frames)
                await asyncio.sleep(0)

    def _take_live(self, frames: list[bytes]) -> None:
        try:
            seq, batch = self._read(frames)
        except FrameError as error:
            self._sink.rejected("bad_frames")
            log.debug("%s (publisher %s)", error, self.events)
            return
        now = self._now()
        self._check_at = now + self._options.idle_check_s
        self._do(self.stream.live(seq, batch, ts=batch.timestamp), live=True)

    async def _watch(self) -> None:
        while True:
            message = await recv_monitor_message(self._monitor)
            if message["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._check_at = self._now() + self._options.recheck_s
                self._do(self.stream.connected())
            else:
                self.stream.disconnected()
                self._tell_trust()

    # -- replay ---------------------------------------------------------------------------------------------------

    def _start_replay(self, start: int) -> None:
        if self._replay_task is not None:
            self._replay_task.cancel()
        self._replay_task = self._spawn(self._fetch(start))

    async def _fetch(self, start: int) -> None:
        """One replay request: everything from `start` on, until the end marker or until it is cancelled."""
        assert self.replay is not None  # noqa: S101 - streams without a replay address ask for none
        async with self._slots:
            # unlimited: a reply burst must not be cut on our side; the sender's buffer bounds it
            socket = _open(self._context, zmq.DEALER, self.replay, receive_hwm=0)
            try:
                socket.connect(self.replay)
                await socket.send_multipart([b"", start.to_bytes(_SEQ_BYTES, "big")])
                self.stream.replay_sent(now=self._now())
                while True:
                    frames = await socket.recv_multipart()
                    if len(frames) >= 2 and frames[-2] == _END_OF_REPLAY:
                        break
                    self._take_replayed(frames)
            finally:
                socket.close(linger=0)
        self._replay_task = None
        self._do(self.stream.replay_end(now=self._now()))

    def _take_replayed(self, frames: list[bytes]) -> None:
        try:
            seq, batch = self._read(frames)
        except FrameError as error:
            self._sink.rejected("bad_replay_frames")
            log.debug("%s (replay of %s)", error, self.replay)
            return
        self._do(self.stream.replayed(seq, batch, ts=batch.timestamp, now=self._now()))

    # -- both -----------------------------------------------------------------------------------------------------

    def _read(self, frames: list[bytes]) -> tuple[int, EventBatch]:
        """Sequence number and batch; the number counts even if the payload cannot be read."""
        if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
            sizes = [len(frame) for frame in frames]
            raise FrameError(f"message has parts of {sizes} bytes, want [topic, 8-byte sequence, payload]")
        try:
            batch = decode_batch(frames[-1])
        except WireError as error:
            log.debug("%s (publisher %s)", error, self.events)
            batch = EventBatch(0.0, (), None, (error.reason,))
        return int.from_bytes(frames[-2], "big"), batch

    def _do(self, actions: list[Action[EventBatch]], *, live: bool = False) -> None:
        for action in actions:
            match action:
                case Apply(item=batch):
                    self._sink.apply(batch, live=live)
                case Reset(reason=reason):
                    self._sink.reset(reason)
                case RequestReplay(start=start):
                    self._start_replay(start)
        if self._replay_task is not None and not self.stream.awaits_answer:
            self._replay_task.cancel()  # given up: free its slot
            self._replay_task = None
        self._tell_trust()

    def _tell_trust(self) -> None:
        trust = self.stream.trust
        if trust is not self._trust:
            old, self._trust = self._trust, trust
            self._sink.trust_changed(old, trust)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        return asyncio.create_task(coroutine, name=f"events {self.events}")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _open(context: zmq.asyncio.Context, kind: int, address: str, receive_hwm: int) -> zmq.asyncio.Socket:
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, receive_hwm)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 5_000)
    # a peer that vanished without closing (node lost) shows as a disconnect after this
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15_000)
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)
    return socket
