"""One publisher's stream: a state machine from frames and time to actions.

A publisher numbers its batches 0, 1, 2, ... within one life (epoch) and keeps the latest for replay. Over a lossy
transport this machine detects gaps, duplicates, reordering and restarts, requests missing batches, and applies every
batch once and in order. If history is not available, it continues with the batches that are and reports it
(`Trust.PARTIAL`); it never stops applying live batches for good.
Source: vLLM ZmqEventPublisher; its ROUTER drops replies silently, so only contiguity proves a replay complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import inf
from typing import Generic

from .actions import Action, Apply, ItemT, RequestReplay, Reset
from .counters import StreamCounters
from .doubt import Doubt
from .held import Held, HeldBatches
from .limits import StreamLimits
from .model import Seq
from .order import BatchOrder, Verdict
from .position import StreamPosition
from .replay_request import ReplayRequest


class Trust(StrEnum):
    """The degree to which the index believes its view of a publisher."""

    LIVE = "live"
    """Every batch of this epoch was applied."""
    REPLAYING = "replaying"
    """Missing batches are being fetched."""
    PARTIAL = "partial"
    """Some history was not available; the known part is kept."""
    STALE = "stale"
    """The connection is down; the engine may have changed since."""
    DARK = "dark"
    """No message has ever arrived."""


class PublisherStream(Generic[ItemT]):
    """State of one publisher's stream. Sans-IO: the shell performs the returned actions.

    Args:
        can_replay: whether the publisher has a replay socket.
        limits: bounds.
        position: state of an earlier stream to continue from; the connection counts as down since then.
    """

    def __init__(
        self, *, can_replay: bool, limits: StreamLimits | None = None, position: StreamPosition | None = None
    ) -> None:
        position = position or StreamPosition()
        self.counters = StreamCounters()
        self.epoch, self.life = position.epoch, position.life
        self._can_replay = can_replay
        self._limits = limits or StreamLimits()
        self._held = HeldBatches[ItemT](
            max_count=self._limits.max_held, max_bytes=self._limits.max_held_bytes
        )
        self._order = BatchOrder(self._held, counters=self.counters, position=position)
        self._replay: ReplayRequest | None = None
        self._unverified = False
        self._doubt = Doubt(self._limits.max_doubtful)
        self._connected = self._waits = False
        self._has_received = position.next_seq is not None

    @property
    def trust(self) -> Trust:
        """Trust in the state that the applied batches built."""
        if not self._has_received:
            return Trust.DARK
        if not self._connected:
            return Trust.STALE
        if self._waits or (self._replay is not None and (self._held or not self._replay.routine)):
            return Trust.REPLAYING
        return Trust.PARTIAL if self._order.lost or self._unverified else Trust.LIVE

    @property
    def is_connected(self) -> bool:
        """Whether the live connection is up, as far as its source reports."""
        return self._connected

    @property
    def held_bytes(self) -> int:
        """Payload bytes of the held batches."""
        return self._held.size_bytes

    @property
    def awaits_replay(self) -> bool:
        """Whether a replay is in progress, so that `tick` has work."""
        return self._replay is not None

    @property
    def awaits_answer(self) -> bool:
        """Whether a replay request is open: neither given up nor waiting to be repeated."""
        return self._replay is not None and self._replay.wait_until is None

    @property
    def last_seq(self) -> int | None:
        """Highest sequence number applied in this epoch, None before the first."""
        return self._order.next_seq - 1 if self._order.next_seq else None

    def position(self) -> StreamPosition:
        """Return the state to continue from, without the held batches: a replay fetches them again."""
        return self._order.position(epoch=self.epoch, life=self.life)

    def connected(self) -> list[Action[ItemT]]:
        """Handle a (new) live connection: fetch the batches published while it was down.

        The request begins with the last applied batch. A publisher in the same life always has that one, so a reply
        without it, or with another time stamp on it, shows a restart before any new event does. Held batches may belong
        to another life than the next ones; the reply brings them again.
        """
        self._connected, self._waits = True, False
        if not self._can_replay:
            self._order.lost |= self._order.next_seq is not None  # batches may have been published meanwhile
            return []
        self._held.clear()
        return self._ask(probing=bool(self._order.next_seq))

    def check(self, *, same_connection: bool = True) -> list[Action[ItemT]]:
        """Request missed batches of a silent publisher, whose losses no later batch shows.

        Args:
            same_connection: the connection is known to have lasted, so that a reply without the last applied batch
                means a truncated history, not another life.
        """
        if not self._can_replay or not self._connected or self._replay is not None or self._waits:
            return []
        return self._ask(probing=bool(self._order.next_seq), routine=True, same_connection=same_connection)

    def disconnected(self) -> None:
        """Handle the loss of the live connection."""
        self._connected = False

    def restarted(self, reason: str) -> list[Action[ItemT]]:
        """Start a new life, on evidence from elsewhere (process start time, identity)."""
        self._order.believes_stamps = True
        return self._restarted(reason)

    def _restarted(self, reason: str) -> list[Action[ItemT]]:
        self.epoch += 1
        self._order.clear()
        self._doubt = Doubt(self._limits.max_doubtful, other_life_at=self._doubt.other_life_at)
        self._replay = None
        self._unverified = self._waits = False
        self.counters.restarts += 1
        actions: list[Action[ItemT]] = [Reset(reason)]
        return actions + (self._ask() if self._can_replay else [])

    def damaged(self) -> None:
        """Lower the trust: a part of an applied batch could not be used."""
        self._order.lost = True

    @property
    def next_in_line(self) -> int | None:
        """Number of the live batch that nothing waits before; None if each is to be passed to `live`."""
        if self._replay is not None or self._held or self._waits or not self._connected:
            return None
        return self._order.next_seq

    def follows(self, seq: int, ts: float, *, latest: float = inf) -> bool:
        """Return whether a live batch is `next_in_line`; then it is to be applied at once. Arguments are those of `live`."""
        if seq != self.next_in_line:
            return False
        self.followed((ts,), latest=latest)
        return True

    def followed(self, timestamps: Sequence[float], *, latest: float) -> None:
        """Note that batches from `next_in_line` on were applied, by their time stamps; `latest` is that of `live`."""
        self._has_received = True
        self._doubt.n_in_a_row = 0
        self._order.latest = latest
        for ts in timestamps:
            self._order.release(self._order.next_seq or 0, ts)

    def live(
        self,
        seq: int,
        item: ItemT,
        *,
        ts: float,
        latest: float = inf,
        size_bytes: int = 0,
        begins: bool = False,
    ) -> list[Action[ItemT]]:
        """Handle a batch from the live socket.

        A batch that arrives while the connection is down has overtaken the report that it is up.

        Args:
            seq: its number.
            item: the batch as the caller has it.
            ts: the publisher's own time stamp, 0 if unknown.
            latest: newest time stamp that can be true.
            size_bytes: payload size.
            begins: whether a publisher says with it that it has started (SGLang); believed of batch 0 alone.
        """
        if self.follows(seq, ts, latest=latest):
            return [Apply(Seq(seq), item)]
        self._has_received = True
        if not self._connected and self._order.next_seq is not None:
            joined = self.connected()
            more = self.live(seq, item, ts=ts, latest=latest, size_bytes=size_bytes, begins=begins)
            return [*joined, *more]
        self._connected = True
        self._order.latest = latest
        verdict = self._order.judge(seq, ts, strict=self._can_replay)
        if verdict is Verdict.NEW_LIFE or (begins and seq == 0 and verdict is Verdict.DOUBTFUL):
            return [
                *self._restarted(f"sequence went back to {seq}"),
                *self.live(seq, item, ts=ts, latest=latest, size_bytes=size_bytes),
            ]
        if verdict is Verdict.DOUBTFUL:
            return self._doubt_it(seq)
        if seq == 0:
            self._order.begin()
        if self._replay is None and self._order.next_seq is None:
            return self._first(seq, Held(ts, item, size_bytes))
        if not self._hold(seq, Held(ts, item, size_bytes)):
            return []
        self._doubt.n_in_a_row = 0
        return self._go_on()

    def _go_on(self) -> list[Action[ItemT]]:
        """Apply what is in order, and do something about a hole after it."""
        actions: list[Action[ItemT]] = list(self._ready())
        if self._held and self._replay is None and not self._waits:
            self.counters.gaps += 1
            actions += self._ask() if self._can_replay else self._give_up_hole()
        return actions

    def replayed(
        self, seq: int, item: ItemT, *, ts: float, now: float, size_bytes: int = 0
    ) -> list[Action[ItemT]]:
        """Handle a batch from the replay socket. Late replies to an abandoned request are ignored."""
        if self._replay is None:
            return []
        self._has_received = True
        self._replay.last_reply_at = now
        self._replay.empty = False
        self._replay.newest = max(self._replay.newest, seq)
        if self._order.judge(seq, ts, strict=self._can_replay) is Verdict.NEW_LIFE:
            if not self._doubt.stamps_lie(now):
                return self._restarted(f"replay answered with another life's batch {seq}")
            self._order.believes_stamps = False
            self.counters.lying_stamps += 1
        if seq == self._replay.start:
            self._replay.has_witness |= self._replay.probing
            self._replay.probing = False
        self._order.begin()
        if not self._hold(seq, Held(ts, item, size_bytes)):
            return []
        self._replay.useful = True
        return list(self._ready())

    def replay_end(self, *, now: float) -> list[Action[ItemT]]:
        """Handle the end marker of a reply. It is believed only if no batch is missing."""
        if self._replay is None or self._replay.wait_until is not None:
            return []
        self._has_received = True
        if self._replay.probing and self._replay.empty:
            if not self._replay.same_connection:
                return self._restarted(f"batch {self._replay.start} is no longer there")
            self._order.lost = True
        self._order.begin()
        actions: list[Action[ItemT]] = list(self._ready())
        if self._replay.has_witness:  # a whole reply: later batches that came before it are of somebody else
            self._doubt.settle()
            if self._replay.attempts and not self._replay.useful:
                self.counters.disowned += self._held.drop_after(self._replay.newest)
        if not self._held and not self._replay.verifying:
            self._replay = None
            self._unverified = False
            return actions
        return actions + self._retry(now, answered=True)

    def replay_cut(self) -> list[Action[ItemT]]:
        """Handle a reply that was cut off at a limit: continue without the rest."""
        if self._replay is None:
            return []
        self.counters.replay_cuts += 1
        self._replay = None
        self._order.lost = True
        self._order.begin()
        actions: list[Action[ItemT]] = list(self._ready())
        while self._held:
            actions += self._give_up_hole()
        return actions

    def tick(self, *, now: float) -> list[Action[ItemT]]:
        """Fail unanswered requests and end waits. Call at least every `reply_timeout_s`."""
        replay = self._replay
        if replay is None:
            return []
        if replay.wait_until is not None:
            return self._send() if now >= replay.wait_until else []
        if now - replay.last_reply_at < self._limits.reply_timeout_s:
            return []
        self.counters.replay_failures += 1
        return self._retry(now, answered=False)

    def replay_sent(self, *, now: float) -> None:
        """Start the time-out of a request that left this process; before, it may queue for a fleet-wide slot."""
        if self._replay is not None:
            self._replay.last_reply_at = now

    # -- replay ---------------------------------------------------------------------------------------------------

    def _ask(
        self, *, probing: bool = False, routine: bool = False, same_connection: bool = False
    ) -> list[Action[ItemT]]:
        self._replay = ReplayRequest(probing=probing, routine=routine, same_connection=same_connection)
        return self._send()

    def _send(self) -> list[Action[ItemT]]:
        replay = self._replay
        assert replay is not None  # noqa: S101 - only called with one
        replay.last_reply_at, replay.wait_until, replay.next_before = inf, None, self._order.next_seq or 0
        replay.start = replay.next_before - replay.probing
        replay.empty, replay.useful, replay.has_witness, replay.newest = True, False, False, 0
        self.counters.replays += 1
        return [RequestReplay(Seq(replay.start))]

    def _retry(self, now: float, *, answered: bool) -> list[Action[ItemT]]:
        """Repeat a request that did not bring everything, later each time; finally continue without the rest."""
        replay = self._replay
        assert replay is not None  # noqa: S101 - only called with one
        if replay.useful and (self._order.next_seq or 0) > replay.next_before:
            return self._next_page(replay.pages + 1, now)
        replay.attempts += 1
        if replay.attempts < self._limits.max_attempts:
            replay.wait_until = now + self._limits.backoff_s * 2 ** (replay.attempts - 1)
            if answered and not replay.verifying and self._order.next_seq:
                # a reply from the last applied batch on shows whether the publisher ever had the held ones
                replay.probing = replay.routine = replay.same_connection = True
            return []
        self._replay = None
        self._unverified |= not answered and not replay.routine
        self._order.lost |= answered and replay.verifying  # the publisher may be in another life
        actions = self._give_up_hole()
        return actions + (self._ask() if self._held else [])

    def _next_page(self, number: int, now: float) -> list[Action[ItemT]]:
        """Request what follows; a server that answers with little at a time is not asked without a pause."""
        self._replay = ReplayRequest(pages=number)
        if number <= self._limits.max_pages:
            return self._send()
        self._replay.wait_until = now + self._limits.backoff_s
        return []

    def _doubt_it(self, seq: int) -> list[Action[ItemT]]:
        """Drop a doubtful batch; after many in a row, verify the publisher's life, or believe them if that fails."""
        if seq < (self._order.next_seq or 0):
            self.counters.duplicates += 1
        else:
            self.counters.implausible += 1
        if not self._doubt.is_ripe() or self._replay is not None:
            return []
        if self._can_replay and not self._doubt.asked:
            self._doubt.asked = True
            return self._ask(probing=bool(self._order.next_seq), routine=True)
        return self._restarted(f"many batches in a row, such as {seq}, cannot follow the last one")

    @property
    def _is_verifying(self) -> bool:
        return self._replay is not None and self._replay.verifying

    # -- order ----------------------------------------------------------------------------------------------------

    def _first(self, seq: int, batch: Held[ItemT]) -> list[Action[ItemT]]:
        """Handle the first batch of an epoch. Publishers count from 0, some from 1; a later number is a late join."""
        self._hold(seq, batch)
        if seq > 1 and self._can_replay:
            return self._ask()
        self._order.give_up_to(seq)
        return list(self._ready())

    def _hold(self, seq: int, batch: Held[ItemT]) -> bool:
        return self._order.hold(seq, batch, may_give_up=not self._is_verifying)

    def _ready(self) -> Iterator[Apply[ItemT]]:
        self._waits &= not self._held.is_over
        if not self._is_verifying and not self._waits:
            yield from (Apply(Seq(seq), item) for seq, item in self._order.ready())

    def _give_up_hole(self) -> list[Action[ItemT]]:
        """Continue after the first hole."""
        if not self._held:
            return []
        self._order.give_up_to(self._held.first)
        return list(self._ready())
