"""One publisher as kvatlas follows it: its stream, its replay and its sink, fed by whatever receives it live."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .errors import FrameError, SubscriptionError, WireError
from .model import Batch, EventBatch
from .position import StreamPosition
from .replay import END_OF_REPLAY, ReplayServer
from .sockets import spawn
from .stream import Action, Apply, PublisherStream, RequestReplay, Reset, StreamLimits, Trust
from .wire import decode_batch

log = logging.getLogger(__name__)

HARMLESS = frozenset({"unknown_tag"})
"""Reasons of rejected events that leave what is known right: an event type that engines have added."""

_SEQ_BYTES = 8


class EventSink(Protocol):
    """Receives what one publisher says, in order, on the event loop's thread."""

    def apply(self, batch: Batch, *, live: bool) -> None:
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


class LiveSource(Protocol):
    """What receives one publisher's live messages and hands them to its subscription."""

    def stop(self) -> None:
        """Hand on nothing from now on."""
        ...

    async def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """Settings shared by all subscriptions.

    Attributes:
        topic_prefix: ZMQ subscription prefix.
        receive_hwm: messages a socket queues before the sender's drop; a loss shows as a gap.
        max_sockets: sockets open at one time.
        max_concurrent_replays: replay requests out at one time over the fleet.
        recheck_s: time after a connection at which to look for batches lost while the subscription travelled.
        idle_check_s: silence after which to look for missed batches.
        tick_s: resolution of time-outs.
        decode: reads payloads, as `decode_batch` does.
    """

    topic_prefix: str = ""
    receive_hwm: int = 100_000
    max_sockets: int = 65_000
    max_concurrent_replays: int = 8
    recheck_s: float = 1.0
    idle_check_s: float = 10.0
    tick_s: float = 0.2
    limits: StreamLimits = field(default_factory=StreamLimits)
    decode: Callable[[bytes], Batch] = decode_batch


class Subscription:
    """One publisher's stream, replay and sink. Made by `Subscriber`.

    Args:
        events: address where its live messages arrive, for people.
        replay: where it answers replay requests, None when it does not.
        sink: receives its batches.
        options: settings.
        position: where an earlier subscription to the publisher stood, None to begin with its history.
        sees_disconnects: whether the source tells of lost connections. Where it cannot, a publisher whose replay
            socket has answered before is `stale` while a look at it stays unanswered, until anything is heard of it;
            so is one with a position, until then.
        open_source: opens what receives its live messages.
    """

    def __init__(
        self,
        *,
        events: str,
        replay: ReplayServer | None,
        sink: EventSink,
        options: SubscriberOptions,
        position: StreamPosition | None,
        sees_disconnects: bool,
        open_source: Callable[[Subscription], LiveSource],
    ) -> None:
        self.events = events
        self.topic = b""
        """Of the last live message; empty when it had none."""
        self.stream: PublisherStream[Batch] = PublisherStream(
            can_replay=replay is not None, limits=options.limits, position=position
        )
        self._replay, self._sink, self._options = replay, sink, options
        self._sees_disconnects = sees_disconnects
        self._replay_task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._check_at: float | None = None
        self._checked_at = self._heard_at = 0.0
        self._replay_answers = False
        self._silent = self.stream.trust is Trust.STALE and not sees_disconnects
        self.trust = self._believed()
        """Belief in the publisher's state, as the sink was told."""
        self._source = open_source(self)

    @property
    def replay(self) -> str | None:
        """Address of the publisher's replay socket, None when it has none."""
        return self._replay.address if self._replay else None

    def tick(self) -> None:
        """Let time pass: replay time-outs, and looks at publishers that have been silent."""
        now = self._now()
        if self.stream.awaits_replay:
            failures = self.stream.counters.replay_failures
            self._do(self.stream.tick(now=now))
            if self.stream.counters.replay_failures > failures:
                self._unanswered()
        elif self._check_at is not None and now >= self._check_at:
            self._check_at = now + self._options.idle_check_s
            self._checked_at = now
            self._do(self.stream.check(same_connection=self._sees_disconnects))

    def restarted(self, reason: str) -> None:
        """Evidence from elsewhere that the publisher began a new life."""
        self._do(self.stream.restarted(reason))

    def stop(self) -> None:
        """From now on nothing reaches the sink; `close` frees the rest."""
        self._source.stop()
        self._cancel_replay()

    async def close(self) -> None:
        """Stop, and close the sockets."""
        self.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self._source.close()

    # -- live, called by the source -------------------------------------------------------------------------------

    def connected(self) -> None:
        """The publisher is (again) connected, or may be."""
        self._check_at = self._now() + self._options.recheck_s
        self._do(self.stream.connected())

    def disconnected(self) -> None:
        """The connection to the publisher is lost."""
        self.stream.disconnected()
        self._tell_trust()

    def live(self, seq: int, batch: Batch, *, topic: bytes) -> None:
        """A live batch. One that cannot be read is not trusted with its number either: it is missing, and fetched."""
        if not len(batch) and batch.rejected and batch.timestamp == 0:
            self._sink.rejected(batch.rejected[0])
            return
        self.topic = topic
        self._heard()
        self._check_at = self._heard_at + self._options.idle_check_s
        self._do(self.stream.live(seq, batch, ts=batch.timestamp, size_bytes=batch.size_bytes), live=True)

    def rejected(self, reason: str) -> None:
        """A live message that cannot be taken."""
        self._sink.rejected(reason)

    # -- replay ---------------------------------------------------------------------------------------------------

    def _start_replay(self, start: int) -> None:
        self._cancel_replay()
        self._replay_task = spawn(self._fetch(start), f"replay {self.replay}")

    def _cancel_replay(self) -> None:
        task, self._replay_task = self._replay_task, None
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _fetch(self, start: int) -> None:
        assert self._replay is not None  # noqa: S101 - streams without a replay address ask for none
        try:
            await self._replay.fetch(start, sent=self._replay_sent, take=self._take_replayed)
        except SubscriptionError as error:
            log.warning("%s", error)
            self._replay_sent()  # as good as sent into the void: it times out, is tried again, and given up
            return
        self._replay_task = None
        self._heard()
        self._replay_answers = True
        self._do(self.stream.replay_end(now=self._now()))

    def _replay_sent(self) -> None:
        self.stream.replay_sent(now=self._now())

    def _take_replayed(self, frames: list[bytes]) -> None:
        try:
            seq, batch = read_message(frames, self._options.decode)
        except FrameError as error:
            self._sink.rejected("bad_replay_frames")
            log.debug("%s (replay of %s)", error, self.replay)
            return
        self._heard()
        self._do(
            self.stream.replayed(seq, batch, ts=batch.timestamp, now=self._now(), size_bytes=batch.size_bytes)
        )

    def _unanswered(self) -> None:
        """A replay request got no answer; if it was the last try of a look at the publisher, it is silent."""
        if self._sees_disconnects or not self._replay_answers or self.stream.awaits_replay:
            return
        if self._heard_at < self._checked_at:
            self._silent = True
            self._tell_trust()

    # -- both -----------------------------------------------------------------------------------------------------

    def _heard(self) -> None:
        self._heard_at = self._now()
        self._silent = False

    def _do(self, actions: list[Action[Batch]], *, live: bool = False) -> None:
        for action in actions:
            match action:
                case Apply(item=batch):
                    if not HARMLESS.issuperset(batch.rejected):
                        self.stream.damaged()
                    self._sink.apply(batch, live=live)
                case Reset(reason=reason):
                    self._sink.reset(reason)
                case RequestReplay(start=start):
                    self._start_replay(start)
        if not self.stream.awaits_answer:
            self._cancel_replay()  # given up: free its slot
        self._tell_trust()

    def _tell_trust(self) -> None:
        trust = self._believed()
        if trust is not self.trust:
            old, self.trust = self.trust, trust
            self._sink.trust_changed(old, trust)

    def _believed(self) -> Trust:
        return Trust.STALE if self._silent else self.stream.trust

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def read_message(frames: list[bytes], decode: Callable[[bytes], Batch]) -> tuple[int, Batch]:
    """Sequence number and batch of `[..., 8-byte sequence, payload]`; the number counts even if the payload cannot be read.

    Args:
        frames: parts of the message.
        decode: reads the payload, as `decode_batch` does.
    Raises:
        FrameError: other parts, or the number that ends a replay.
    """
    if len(frames) < 2 or len(frames[-2]) != _SEQ_BYTES:
        sizes = [len(frame) for frame in frames]
        raise FrameError(f"message has parts of {sizes} bytes, want [topic, 8-byte sequence, payload]")
    if frames[-2] == END_OF_REPLAY:
        raise FrameError("batch has the sequence number 2**64 - 1, which ends a replay")
    try:
        batch = decode(frames[-1])
    except WireError as error:
        log.debug("%s", error)
        batch = EventBatch(0.0, (), None, (error.reason,))
    return int.from_bytes(frames[-2], "big"), batch
