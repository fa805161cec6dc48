"""One publisher's stream: frames and time in, actions out.

A publisher numbers its batches 0, 1, 2, ... within one life (epoch) and keeps the last ones for replay. Over a lossy
transport this machine finds gaps, duplicates, reordering and restarts, asks for what is missing, and hands every batch
on once and in order. When history cannot be had it goes on with what there is and says so (`Trust.PARTIAL`); it never
stops applying live batches for ever.
Source: vLLM ZmqEventPublisher; its ROUTER drops replies silently, so only contiguity proves a replay complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Generic, TypeVar

from .held import Held, HeldBatches
from .model import Seq
from .position import StreamPosition
from .replay_request import ReplayRequest
from .stamps import BatchStamps

ItemT = TypeVar("ItemT")


class Trust(StrEnum):
    """How far the index believes its view of a publisher."""

    LIVE = "live"
    """Every batch of this epoch was applied."""
    REPLAYING = "replaying"
    """Missing batches are being fetched."""
    PARTIAL = "partial"
    """Some history could not be had; what is known is kept."""
    STALE = "stale"
    """The connection is down; the engine may have changed since."""
    DARK = "dark"
    """Nothing was ever heard."""


@dataclass(frozen=True, slots=True)
class Apply(Generic[ItemT]):
    """Apply this batch; every sequence number is applied at most once an epoch, in order."""

    seq: Seq
    item: ItemT


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget all that was learned from this publisher: it started a new life."""

    reason: str


@dataclass(frozen=True, slots=True)
class RequestReplay:
    """Ask the publisher for every batch from `start` on, and report answers, the end, and the passing of time."""

    start: Seq


Action = Apply[ItemT] | Reset | RequestReplay


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Bounds of one stream.

    Attributes:
        max_held: batches held while a hole before them is being fetched; past it the oldest hole is given up.
        max_held_bytes: the same in bytes of payload.
        reply_timeout_s: silence after which an unanswered replay request counts as failed.
        backoff_s: wait before the second request for the same hole; doubles each time.
        max_attempts: requests without progress after which a hole is given up.
    """

    max_held: int = 20_000
    max_held_bytes: int = 64 * 1024 * 1024
    reply_timeout_s: float = 2.0
    backoff_s: float = 0.2
    max_attempts: int = 3


@dataclass(slots=True)
class StreamCounters:
    """What happened on one stream since it was created."""

    applied: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost: int = 0
    """Batches given up because no replay had them."""
    restarts: int = 0
    replays: int = 0
    replay_failures: int = 0


class PublisherStream(Generic[ItemT]):
    """State of one publisher's stream. Sans-IO: the shell does what the returned actions say.

    Args:
        can_replay: whether the publisher has a replay socket.
        limits: bounds.
        position: where another machine of this publisher stood; the connection is down and nothing is known since.
    """

    def __init__(
        self, *, can_replay: bool, limits: StreamLimits | None = None, position: StreamPosition | None = None
    ) -> None:
        position = position or StreamPosition()
        self.counters = StreamCounters()
        self.epoch = position.epoch
        self._can_replay = can_replay
        self._limits = limits or StreamLimits()
        # None: nothing applied yet, and the start of history is unknown
        self._next: int | None = position.next_seq
        self._held = HeldBatches[ItemT](
            max_count=self._limits.max_held, max_bytes=self._limits.max_held_bytes
        )
        self._stamps = BatchStamps(position.next_seq or 0, position.stamps, position.newest_stamp)
        self._replay: ReplayRequest | None = None
        self._lost: bool = position.lost
        self._unverified = False
        self._connected = False
        self._heard = position.next_seq is not None

    @property
    def trust(self) -> Trust:
        """Belief in the state that the applied batches built."""
        if not self._heard:
            return Trust.DARK
        if not self._connected:
            return Trust.STALE
        if self._replay is not None and (self._held or not self._replay.routine):
            return Trust.REPLAYING
        return Trust.PARTIAL if self._lost or self._unverified else Trust.LIVE

    @property
    def held_bytes(self) -> int:
        """Payload of the batches that are held."""
        return self._held.size_bytes

    @property
    def awaits_replay(self) -> bool:
        """Whether a replay is under way, so that `tick` has something to do."""
        return self._replay is not None

    @property
    def awaits_answer(self) -> bool:
        """Whether a replay request is out, not given up and not waiting to be repeated."""
        return self._replay is not None and self._replay.wait_until is None

    @property
    def last_seq(self) -> int | None:
        """Highest sequence number applied in this epoch, None before the first."""
        return self._next - 1 if self._next else None

    def position(self) -> StreamPosition:
        """Where the stream stands. Batches that are held are not part of it: they are fetched again."""
        return StreamPosition(
            epoch=self.epoch,
            next_seq=self._next,
            stamps=self._stamps.kept(),
            newest_stamp=self._stamps.newest,
            lost=self._lost,
        )

    def connected(self) -> list[Action[ItemT]]:
        """The live socket is (again) connected: whatever was published meanwhile has to be fetched.

        The request begins with the last applied batch. A publisher still in the same life always has that one, so
        an answer without it, or with another time stamp on it, tells of a restart before any new event does. Batches
        held from before may belong to another life than the next ones; the answer brings them again.
        """
        self._connected = True
        if not self._can_replay:
            self._lost |= self._next is not None  # nobody can say what was published meanwhile
            return []
        self._held.clear()
        return self._ask(probing=bool(self._next))

    def check(self, *, same_connection: bool = True) -> list[Action[ItemT]]:
        """Ask whether anything was missed; for publishers that have been silent, whose losses no later batch shows.

        Args:
            same_connection: the connection is known to have lasted, so that an answer without the last applied batch
                is a history cut short and not another life.
        """
        if not self._can_replay or not self._connected or self._replay is not None:
            return []
        return self._ask(probing=bool(self._next), routine=True, same_connection=same_connection)

    def disconnected(self) -> None:
        """The live socket lost its peer."""
        self._connected = False

    def restarted(self, reason: str) -> list[Action[ItemT]]:
        """Evidence from elsewhere (process start time, identity) that the publisher began a new life."""
        self._forget()
        self.counters.restarts += 1
        actions: list[Action[ItemT]] = [Reset(reason)]
        return actions + (self._ask() if self._can_replay else [])

    def damaged(self) -> None:
        """Something that a batch said could not be taken: what follows from it is not known."""
        self._lost = True

    def live(self, seq: int, item: ItemT, *, ts: float, size_bytes: int = 0) -> list[Action[ItemT]]:
        """A batch from the live socket.

        One that comes while the connection is down has overtaken the news that it is up.

        Args:
            seq: its number.
            item: what it is to the caller.
            ts: the publisher's own time stamp of it, 0 when it could not be read.
            size_bytes: of its payload.
        """
        self._heard = True
        if not self._connected and self._next is not None:
            return [*self.connected(), *self.live(seq, item, ts=ts, size_bytes=size_bytes)]
        self._connected = True
        if self._is_new_life(seq, ts):
            return [
                *self.restarted(f"sequence went back to {seq}"),
                *self.live(seq, item, ts=ts, size_bytes=size_bytes),
            ]
        if self._next is None and seq == 0:
            self._next = 0
        if self._replay is None and self._next is None:
            return self._first(seq, Held(ts, item, size_bytes))
        if not self._take(seq, Held(ts, item, size_bytes)):
            return []
        actions: list[Action[ItemT]] = list(self._drain())
        if self._held and self._replay is None:
            self.counters.gaps += 1
            actions += self._ask() if self._can_replay else self._give_up_hole()
        return actions

    def replayed(
        self, seq: int, item: ItemT, *, ts: float, now: float, size_bytes: int = 0
    ) -> list[Action[ItemT]]:
        """A batch from the replay socket. Late answers to a request that was given up are ignored."""
        if self._replay is None:
            return []
        self._heard = True
        self._replay.heard_at = now
        self._replay.empty = False
        if self._is_new_life(seq, ts):
            return self.restarted(f"replay answered with another life's batch {seq}")
        if seq == self._replay.start:
            self._replay.probing = False
        if self._next is None:
            self._next = 0
        return list(self._drain()) if self._take(seq, Held(ts, item, size_bytes)) else []

    def replay_end(self, *, now: float) -> list[Action[ItemT]]:
        """The publisher said it has sent all it has. Believed only if nothing is missing."""
        if self._replay is None or self._replay.wait_until is not None:
            return []
        self._heard = True
        if self._replay.probing and self._replay.empty:
            if not self._replay.same_connection:
                return self.restarted(f"batch {self._replay.start} is no longer there")
            self._lost = True
        if self._next is None:
            self._next = 0
        actions: list[Action[ItemT]] = list(self._drain())
        if not self._held and not self._replay.verifying:
            self._replay = None
            self._unverified = False
            return actions
        return actions + self._missing(now, answered=True)

    def tick(self, *, now: float) -> list[Action[ItemT]]:
        """Passing time: unanswered requests fail, waits end. Call at least every `reply_timeout_s`."""
        replay = self._replay
        if replay is None:
            return []
        if replay.wait_until is not None:
            return self._send() if now >= replay.wait_until else []
        if now - replay.heard_at < self._limits.reply_timeout_s:
            return []
        self.counters.replay_failures += 1
        return self._missing(now, answered=False)

    def replay_sent(self, *, now: float) -> None:
        """The request left this process; until then it does not time out (requests queue for a fleet-wide slot)."""
        if self._replay is not None:
            self._replay.heard_at = now

    # -- replay ---------------------------------------------------------------------------------------------------

    def _ask(
        self, *, probing: bool = False, routine: bool = False, same_connection: bool = False
    ) -> list[Action[ItemT]]:
        self._replay = ReplayRequest(probing=probing, routine=routine, same_connection=same_connection)
        return self._send()

    def _send(self) -> list[Action[ItemT]]:
        replay = self._replay
        assert replay is not None  # noqa: S101 - only called with one
        replay.heard_at, replay.wait_until, replay.next_before = inf, None, self._next or 0
        replay.start, replay.empty = replay.next_before - replay.probing, True
        self.counters.replays += 1
        return [RequestReplay(Seq(replay.start))]

    def _missing(self, now: float, *, answered: bool) -> list[Action[ItemT]]:
        """Something asked for did not come: ask again, later each time, and at last do without."""
        replay = self._replay
        assert replay is not None  # noqa: S101 - only called with one
        if (self._next or 0) > replay.next_before:
            return self._ask()
        replay.attempts += 1
        if replay.attempts < self._limits.max_attempts:
            replay.wait_until = now + self._limits.backoff_s * 2 ** (replay.attempts - 1)
            return []
        self._replay = None
        self._unverified |= not answered and not replay.routine
        self._lost |= answered and replay.verifying  # its life may be another one
        actions = self._give_up_hole()
        return actions + (self._ask() if self._held else [])

    def _give_up_hole(self) -> list[Action[ItemT]]:
        """Go on behind the first hole."""
        if not self._held:
            return []
        self._lose_up_to(self._held.first)
        return list(self._drain())

    # -- sequence -------------------------------------------------------------------------------------------------

    def _first(self, seq: int, batch: Held[ItemT]) -> list[Action[ItemT]]:
        """The first batch heard of an epoch. Publishers count from 0, some from 1; anything later is a late join."""
        if seq > 1 and self._can_replay:
            self._take(seq, batch)
            return self._ask()
        self._take(seq, batch)
        self._lose_up_to(seq)
        return list(self._drain())

    def _take(self, seq: int, batch: Held[ItemT]) -> bool:
        """Hold the batch unless it is a duplicate, or there is no room for it and nothing can be given up yet."""
        if (self._next is not None and seq < self._next) or seq in self._held:
            self.counters.duplicates += 1
            return False
        if self._is_verifying and not self._held.has_room:
            return False
        self._held.put(seq, batch)
        return True

    @property
    def _is_verifying(self) -> bool:
        return self._replay is not None and self._replay.verifying

    def _lose_up_to(self, seq: int) -> None:
        first = self._next or 0
        if (first, seq) != (0, 1):  # some publishers count from 1
            self.counters.lost += seq - first
            self._lost |= seq > first
        self._next = seq
        self._stamps.break_off()

    def _drain(self) -> Iterator[Apply[ItemT]]:
        while not self._is_verifying:
            if self._next not in self._held:
                if not self._held.is_over:
                    return
                self._lose_up_to(self._held.first)
            seq = self._next or 0
            batch = self._held.pop(seq)
            self._stamps.add(seq, batch.ts)
            self._next = seq + 1
            self.counters.applied += 1
            yield Apply(Seq(seq), batch.item)

    def _is_new_life(self, seq: int, ts: float) -> bool:
        """Whether batch `seq` belongs to another epoch than the one being followed.

        Duplicates carry the time stamp they had; another life's batch of the same number does not.
        """
        if seq in self._held:
            known: float | None = self._held.stamp(seq)
        elif self._next is None or seq >= self._next:
            return False
        else:
            known = self._stamps.of(seq)
        if known is None:
            return ts > self._stamps.newest
        return known not in (ts, 0) and ts != 0

    def _forget(self) -> None:
        self.epoch += 1
        self._next = None
        self._held.clear()
        self._stamps.clear()
        self._replay = None
        self._lost = self._unverified = False
