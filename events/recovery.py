"""Recovery of a publisher's state from a snapshot, where its replay no longer reaches back.

vLLM has a proposal for it (pull request 57789, open): beside events and replay a publisher serves its whole state at an endpoint of
its own, with the number of the live batch that follows it. Each life of a publisher has an id, and heartbeats name it with the next
number. This is the part without I/O. The frames are not settled, so no socket speaks them, and nothing uses this by default.

The batches that arrive while a snapshot is fetched are kept, and applied again behind it from its number on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

from .actions import Action, Apply, Reset
from .held import Held
from .model import Seq
from .stream import PublisherStream, Trust

ItemT = TypeVar("ItemT")

MAX_PUBLISHER_ID = 64
"""Longest id of a life that is believed; UUIDs have 36 characters."""


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Bounds of a recovery.

    Attributes:
        timeout_s: time for one snapshot.
        backoff_s: pause after the first failure; it doubles with each further one.
        max_backoff_s: longest pause.
        max_kept: live batches kept while a snapshot is fetched; past it the snapshot is given up.
        max_kept_bytes: their payloads.
    """

    timeout_s: float = 30.0
    backoff_s: float = 1.0
    max_backoff_s: float = 300.0
    max_kept: int = 10_000
    max_kept_bytes: int = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[ItemT]):
    """The state of one publisher.

    Attributes:
        publisher: id of its life.
        resume: number of the live batch that follows.
        ts: the publisher's time stamp of the state.
        items: batches that rebuild the state in an empty ledger, parents before children.
    """

    publisher: str
    resume: int
    ts: float
    items: Sequence[ItemT]


@dataclass(slots=True)
class RecoveryCounters:
    """Counts of one publisher's recoveries."""

    begun: int = 0
    done: int = 0
    failed: int = 0
    stale: int = 0
    """Snapshots of another life than the heartbeats name, or older than what a gap needs."""


@dataclass(slots=True)
class Recovery(Generic[ItemT]):
    """Recoveries of one stream. Sans-IO: the shell asks `due`, fetches, and reports.

    Attributes:
        stream: state machine of the publisher, which sees every live batch too.
        limits: bounds.
        publisher: id of the life that heartbeats or a snapshot last named, None before.
    """

    stream: PublisherStream[ItemT]
    limits: RecoveryLimits = field(default_factory=RecoveryLimits)
    counters: RecoveryCounters = field(default_factory=RecoveryCounters)
    publisher: str | None = None
    _kept: list[tuple[int, Held[ItemT]]] = field(default_factory=list[tuple[int, "Held[ItemT]"]])
    _kept_bytes: int = 0
    _began: float | None = None
    _next_at: float = -inf
    _failures: int = 0
    _first: tuple[int, int] | None = None
    """Life and number of the first batch that came."""

    @property
    def is_fetching(self) -> bool:
        """Whether a snapshot is being fetched."""
        return self._began is not None

    def due(self, *, now: float) -> bool:
        """Return whether to fetch a snapshot: history is missing or may be, and no replay that runs may bring it.

        A stream takes batch 1 for the first one, as some publishers count; one that offers snapshots counts from 0.
        """
        return (
            (self.stream.trust is Trust.PARTIAL or self._first == (self.stream.epoch, 1))
            and not self.is_fetching
            and not self.stream.awaits_replay
            and now >= self._next_at
        )

    def begin(self, *, now: float) -> None:
        """Note that a snapshot is requested."""
        self._forget()
        self._began = now
        self.counters.begun += 1

    def live(self, seq: int, item: ItemT, *, ts: float, size_bytes: int = 0) -> None:
        """Note a live batch, and keep it while a snapshot is fetched. Call it for each, after the stream has taken it."""
        if self._first is None or self._first[0] != self.stream.epoch:
            self._first = self.stream.epoch, seq
        if not self.is_fetching:
            return
        self._kept.append((seq, Held(ts, item, size_bytes)))
        self._kept_bytes += size_bytes
        if len(self._kept) > self.limits.max_kept or self._kept_bytes > self.limits.max_kept_bytes:
            self._fail(self._began or 0.0)

    def heartbeat(self, publisher: str, next_seq: int, *, now: float) -> list[Action[ItemT]]:
        """Handle a heartbeat: another id is another life, and a number ahead of ours a loss that no later batch would show."""
        if not 0 < len(publisher) <= MAX_PUBLISHER_ID:
            return []
        before, self.publisher = self.publisher, publisher
        if before is not None and before != publisher:
            if self.is_fetching:
                self._fail(now)
            self._next_at = -inf
            return self.stream.restarted("its heartbeat names another life")
        last = self.stream.last_seq
        return self.stream.check() if next_seq > (last + 1 if last is not None else 0) else []

    def complete(self, snapshot: Snapshot[ItemT], *, now: float) -> list[Action[ItemT]]:
        """Handle a whole snapshot: start over with it, and go on with the batches from its number on."""
        if not self.is_fetching:
            return []
        is_other_life = self.publisher is not None and snapshot.publisher != self.publisher
        first = min((seq for seq, _ in self._kept), default=None)
        if is_other_life or snapshot.resume < 0 or (first is not None and snapshot.resume < first):
            self.counters.stale += 1
            self._fail(now)
            return []
        self.publisher, self._failures = snapshot.publisher, 0
        self._first = self.stream.epoch, 0
        self.counters.done += 1
        kept = sorted(self._kept, key=lambda each: each[0])
        self._forget()
        self.stream.resume(snapshot.resume, newest=snapshot.ts)
        actions: list[Action[ItemT]] = [Reset("its snapshot is newer than what is known")]
        actions += [Apply(Seq(max(snapshot.resume - 1, 0)), item) for item in snapshot.items]
        for seq, held in kept:
            if seq >= snapshot.resume:
                actions += self.stream.live(seq, held.item, ts=held.ts, size_bytes=held.size_bytes)
        return actions

    def failed(self, *, now: float) -> None:
        """Handle a snapshot that did not come, or is no snapshot: try again later."""
        if self.is_fetching:
            self._fail(now)

    def tick(self, *, now: float) -> None:
        """Give up a snapshot that takes too long."""
        if self._began is not None and now - self._began > self.limits.timeout_s:
            self._fail(now)

    def _fail(self, now: float) -> None:
        self._forget()
        self.counters.failed += 1
        pause = min(self.limits.backoff_s * 2 ** min(self._failures, 30), self.limits.max_backoff_s)
        self._failures += 1
        self._next_at = now + pause

    def _forget(self) -> None:
        self._began = None
        self._kept.clear()
        self._kept_bytes = 0
