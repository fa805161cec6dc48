"""The subscription to one publisher: its stream, its replay and its sink, fed by a source of live messages."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

from .actions import Action, Apply, RequestReplay, Reset
from .backlog import Backlog
from .bootstrap import Bootstrap, Surroundings
from .errors import FAILED, FrameError, ReplayCutError, SubscriptionError, describe
from .inbox import Inbox
from .line_limit import LineLimit
from .message import HARMLESS, Unreadable, read_message
from .model import AllBlocksCleared, Batch
from .options import SubscriberOptions
from .position import StreamPosition
from .recoverable import RecoverableStream
from .replay import ReplayServer
from .runs import Run
from .sink import EventSink
from .snapshot_server import SnapshotServer
from .stream import Trust
from .tasks import spawn
from .turns import Turns

log = logging.getLogger(__name__)

MAX_CLOCK_SKEW_S = 3600.0
"""Time stamps further ahead of our clock than this are no evidence of a restart."""

_MAX_LOGGED = 16
"""Places of failures that are logged per publisher, once each; every failure is counted."""

_MAX_DOUBLINGS = 8
"""The pause between two checks doubles at most so often, from ten seconds to 43 minutes."""


class LiveSource(Protocol):
    """Receiver of one publisher's live messages, which passes them to its subscription."""

    def stop(self) -> None:
        """Pass no more messages."""
        ...

    async def close(self) -> None:
        """Free the sockets it owns."""
        ...


class Subscription:
    """One publisher's stream, replay and sink. Created by `Subscriber`.

    If the source does not report lost connections, a publisher is `stale` from an unanswered check until its next
    message, provided that its replay socket has answered before. One that continues from a position is `stale` until
    its first message.

    Args:
        events: address of its live messages, for people.
        replay: its replay server, None if it has none.
        snapshots: its snapshot server, None if it has none.
        sink: receives its batches.
        turns: when to apply what one turn could not.
        options: settings.
        position: state of an earlier subscription to continue from, None to start with the publisher's history.
        sees_disconnects: whether the source reports lost connections.
        open_source: opens the receiver of its live messages.
    """

    def __init__(
        self,
        *,
        events: str,
        replay: ReplayServer | None,
        snapshots: SnapshotServer | None,
        sink: EventSink,
        turns: Turns,
        options: SubscriberOptions,
        position: StreamPosition | None,
        sees_disconnects: bool,
        open_source: Callable[[Subscription], LiveSource],
    ) -> None:
        self.events = events
        self.topic = b""
        """Topic of the last live message; empty if it had none."""
        self.stream: RecoverableStream[Batch | Unreadable] = RecoverableStream(
            can_replay=replay is not None, limits=options.limits, position=position
        )
        self._replay, self._sink, self._options, self._turns = replay, sink, options, turns
        self._backlog = Backlog(self._apply, clock=time.perf_counter)
        self._bootstrap = None if snapshots is None else Bootstrap(snapshots, self._surroundings())
        self._logged: set[str] = set()
        self._replay_lines = LineLimit()
        self._sees_disconnects = sees_disconnects
        self._replay_task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._check_at: float | None = None
        self._checked_at = self._received_at = 0.0
        self._replay_answers = False
        self._silent = self.stream.trust is Trust.STALE and not sees_disconnects
        self.trust = self._current_trust()
        """Trust in the publisher's state, as last reported to the sink."""
        self._source = open_source(self)

    @property
    def replay(self) -> str | None:
        """Address of the publisher's replay socket, None if it has none."""
        return self._replay.address if self._replay else None

    @property
    def snapshots(self) -> str | None:
        """Address of the publisher's snapshot socket, None if it has none."""
        return self._bootstrap.server.address if self._bootstrap else None

    @property
    def is_applying(self) -> bool:
        """Whether batches are received that the sink has not applied."""
        return bool(self._backlog)

    @property
    def is_amid_batch(self) -> bool:
        """Whether the sink has applied a batch in part."""
        return self._backlog.is_amid_batch

    def position(self) -> StreamPosition:
        """Return the state after the batches that the sink has applied, for a later subscription."""
        self._backlog.finish_batch()
        position, first = self.stream.position(), self._backlog.first
        return position if first is None else position.before(first)

    def tick(self) -> None:
        """Handle replay time-outs, and check a publisher that has been silent."""
        now = self._now()
        if self._backlog:
            return  # time-outs count from the last batch that was handled
        if self.stream.awaits_replay:
            failures = self.stream.counters.replay_failures
            self._do(self.stream.tick(now=now))
            if self.stream.counters.replay_failures > failures:
                self._check_unanswered()
        elif self._check_at is not None and now >= self._check_at:
            doublings = min(self.stream.counters.replay_cuts, _MAX_DOUBLINGS)
            self._check_at = now + self._options.idle_check_s * 2**doublings
            self._checked_at = now
            self._do(self.stream.check(same_connection=self._sees_disconnects))
        if self._bootstrap is not None:
            self._bootstrap.tick(now=now)

    def restarted(self, reason: str) -> None:
        """Start a new life of the publisher, on evidence from elsewhere."""
        self._do(self.stream.restarted(reason))

    def damaged(self) -> None:
        """Lower the trust: the sink could not use a part of a batch."""
        self.stream.damaged()
        self._report_trust()

    def stop(self) -> None:
        """Pass nothing more to the sink; `close` frees the sockets."""
        self._source.stop()
        self._cancel_replay()
        if self._bootstrap is not None:
            self._bootstrap.cancel()
        self._turns.remove(self)
        self._backlog.clear()

    async def close(self) -> None:
        """Stop, and close the sockets."""
        self.stop()
        await asyncio.gather(*self._ending, return_exceptions=True)
        if self._bootstrap is not None:
            await self._bootstrap.close()
        await self._source.close()

    # -- live, called by the source -------------------------------------------------------------------------------

    def connected(self) -> None:
        """Handle a (new) connection to the publisher, or a possible one."""
        self._check_at = self._now() + self._options.recheck_s
        self._do(self.stream.connected())

    def disconnected(self) -> None:
        """Handle the loss of the connection to the publisher."""
        self.stream.disconnected()
        self._report_trust()

    def live(self, seq: int, content: Batch | Unreadable, *, topic: bytes, life: bytes = b"") -> None:
        """Handle a live message. If it is unreadable, its number may be wrong too: the batch counts as missing."""
        if isinstance(content, Unreadable):
            self.reject(content.reason, content.detail)
            return
        self.topic = topic
        self._received()
        self._check_at = self._received_at + self._options.idle_check_s
        if life != self.stream.life:
            self._do(self.stream.identified(life))
        size = content.size_bytes
        if self._backlog and self._backlog.size_bytes + size > self._options.limits.max_held_bytes:
            self.reject("queue_full", "a message was dropped")
            return
        latest = time.time() + MAX_CLOCK_SKEW_S
        if self.stream.follows(seq, content.timestamp, latest=latest):
            self._backlog.start(seq, content, live=True)
            self._work()
            return
        begins = seq == 0 and isinstance(next(iter(content), None), AllBlocksCleared)
        actions = self.stream.live(
            seq, content, ts=content.timestamp, latest=latest, size_bytes=size, begins=begins
        )
        self._do(actions, live=True)

    def run(self, inbox: Inbox) -> Run | None:
        """Apply the messages of the inbox that are ordinary and follow the last one; None if none can be.

        It is the same as `live` for each. Of the next message some events may be applied, see `Run.n_applied`.
        """
        seq = self.stream.next_in_line
        if inbox.native is None or seq is None or self._backlog:
            return None
        run = self._sink.apply_run(inbox.native, seq)
        if run is None or not run.timestamps:
            return run
        self.topic = run.topic
        self._received()
        self._check_at = self._received_at + self._options.idle_check_s
        self.stream.followed(array("d", run.timestamps), latest=time.time() + MAX_CLOCK_SKEW_S)
        if run.failure is not None:
            self.failed(RuntimeError(run.failure))
        self._work()
        return run

    def reject(self, reason: str, detail: object) -> None:
        """Count and log a message that cannot be used."""
        log.debug("%s (publisher %s)", detail, self.events)
        if reason == FAILED and detail not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(str(detail))
            log.error("a message of %s was dropped by a bug: %s; it is not logged again", self.events, detail)
        self._sink.rejected(reason)

    def failed(self, error: Exception) -> None:
        """Handle an exception of a message's handling: the state may lack a part of it."""
        self.stream.damaged()
        self.reject(FAILED, describe(error))

    # -- replay ---------------------------------------------------------------------------------------------------

    def _start_replay(self, start: int) -> None:
        self._cancel_replay()
        self._replay_task = spawn(self._fetch(start), "replay", of=str(self.replay))

    def _cancel_replay(self) -> None:
        task, self._replay_task = self._replay_task, None
        if task is not None:
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def _fetch(self, start: int) -> None:
        assert self._replay is not None  # noqa: S101 - a stream without a replay address requests none
        try:
            await self._replay.fetch(start, sent=self._replay_sent, taker=self)
        except SubscriptionError as error:
            self._warn(str(error))
            self._replay_sent()  # counts as sent: it times out, is retried, and is given up
            return
        except ReplayCutError as error:
            self._warn(f"a replay from {self.replay} was cut off: {error}")
            self._replay_task = None
            self._do(self.stream.replay_cut())
            return
        self._replay_task = None
        self._received()
        self._replay_answers = True
        self._do(self.stream.replay_end(now=self._now()))

    def _warn(self, text: str) -> None:
        """Log a failed replay; a stream that often has gaps requests many."""
        if (more := self._replay_lines.line(self._now())) is not None:
            log.warning("%s%s", text, more)

    def _replay_sent(self) -> None:
        self.stream.replay_sent(now=self._now())

    def take(self, frames: list[bytes]) -> None:
        """Handle a message of a replay. Implements `receiver.Taker`, as the next two."""
        try:
            seq, content, _ = read_message(frames, self._options.decode)
        except FrameError as error:
            self.reject("bad_replay_frames", error)
            return
        self._received()
        ts, size = (0.0, 0) if isinstance(content, Unreadable) else (content.timestamp, content.size_bytes)
        self._do(self.stream.replayed(seq, content, ts=ts, now=self._now(), size_bytes=size))

    def dropped(self, frames: list[bytes], reason: str) -> bool:  # noqa: ARG002 - a method of Taker
        """Count a message past a limit: it is missing, and is requested again."""
        self.reject(reason, "a message was dropped")
        return False

    def is_ready(self) -> bool:
        """Return whether every batch was applied, so that a replay may bring more."""
        return not self._backlog

    def _check_unanswered(self) -> None:
        """Mark the publisher silent if the last attempt of a check got no reply."""
        if self._sees_disconnects or not self._replay_answers or self.stream.awaits_replay:
            return
        if self._received_at < self._checked_at:
            self._silent = True
            self._report_trust()

    # -- both -----------------------------------------------------------------------------------------------------

    def _received(self) -> None:
        self._received_at = self._now()
        self._silent = False

    def work(self, until: float) -> bool:
        """Apply batches. Implements `turns.Work`."""
        if self._backlog.work(until):
            return True
        self._report_trust()
        return False

    def _do(self, actions: list[Action[Batch | Unreadable]], *, live: bool = False) -> None:
        for action in actions:
            match action:
                case Apply(seq=seq, item=content):
                    self._backlog.add(seq, content, live=live)
                case Reset(reason=reason):
                    self._backlog.clear()
                    self._sink.reset(reason)
                case RequestReplay(start=start):
                    self._start_replay(start)
        self._work()

    def _surroundings(self) -> Surroundings:
        return Surroundings(
            self.stream, self._sink, self._turns, self._options.decode, lambda: not self._backlog, self._do
        )

    def _work(self) -> None:
        if self._replay_task is not None and not self.stream.awaits_answer:
            self._cancel_replay()  # the request was given up: free its slot
        if self._bootstrap is not None:
            self._bootstrap.follow()
        if self._backlog and self._backlog.work(self._turns.until):
            self._turns.add(self)
        else:
            self._report_trust()

    def _apply(self, content: Batch | Unreadable, *, live: bool) -> Iterator[None] | None:
        if isinstance(content, Unreadable):
            self.stream.damaged()
            self.reject(content.reason, content.detail)
            return None
        try:
            slices = self._sink.apply(content, live=live)
            if slices is not None:
                return self._apply_rest(content, slices)
            self._applied(content)
        except Exception as error:  # noqa: BLE001 - the batches after it are applied all the same
            self.failed(error)
        return None

    def _apply_rest(self, content: Batch, slices: Iterator[None]) -> Iterator[None]:
        try:
            yield from slices
            self._applied(content)
        except Exception as error:  # noqa: BLE001 - as above
            self.failed(error)

    def _applied(self, content: Batch) -> None:
        if not HARMLESS.issuperset(content.rejected):
            self.stream.damaged()

    def _report_trust(self) -> None:
        trust = self._current_trust()
        if trust is not self.trust:
            old, self.trust = self.trust, trust
            self._sink.trust_changed(old, trust)

    def _current_trust(self) -> Trust:
        return Trust.STALE if self._silent else self.stream.trust

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
