"""Recovery of a publisher's state from snapshots, with a publisher that offers them behind a lossy network."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvatlas.events.actions import Action, Apply, RequestReplay, Reset
from kvatlas.events.recovery import Recovery, RecoveryLimits, Snapshot
from kvatlas.events.stream import PublisherStream, Trust

Change = tuple[str, int]
"""("store" or "remove", block)."""

Batch = tuple[Change, ...]


@dataclass
class SnapshotPublisher:
    """A simulated publisher: a cache, its numbered batches, heartbeats, and a snapshot of its state."""

    life: int = 0
    clock: float = 0.0
    blocks: set[int] = field(default_factory=set[int])
    next_seq: int = 0

    def publish(self, *changes: Change) -> tuple[int, Batch, float]:
        for kind, block in changes:
            self.blocks.add(block) if kind == "store" else self.blocks.discard(block)
        self.clock += 1.0
        self.next_seq += 1
        return self.next_seq - 1, changes, self.clock

    def snapshot(self) -> Snapshot[Batch]:
        stores = tuple(("store", block) for block in sorted(self.blocks))
        return Snapshot(f"life-{self.life}", self.next_seq, self.clock, [stores[::2], stores[1::2]])

    def restart(self) -> None:
        self.life, self.next_seq = self.life + 1, 0
        self.blocks.clear()


@dataclass
class Follower:
    """A stream without replay, its recovery, and the blocks that follow from its actions."""

    limits: RecoveryLimits = field(default_factory=RecoveryLimits)
    blocks: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        self.stream = PublisherStream[Batch](can_replay=False)
        self.recovery = Recovery(self.stream, self.limits)
        self.do(self.stream.connected())

    def do(self, actions: list[Action[Batch]]) -> None:
        for action in actions:
            match action:
                case Apply(item=item):
                    for kind, block in item:
                        self.blocks.add(block) if kind == "store" else self.blocks.discard(block)
                case Reset():
                    self.blocks.clear()
                case RequestReplay():
                    raise AssertionError("it has no replay")

    def live(self, message: tuple[int, Batch, float]) -> None:
        seq, item, ts = message
        self.do(self.stream.live(seq, item, ts=ts))
        self.recovery.live(seq, item, ts=ts, size_bytes=10)


def late(n_missed: int = 5, *, limits: RecoveryLimits | None = None) -> tuple[SnapshotPublisher, Follower]:
    """Return a publisher and one who joined late, and lost one batch."""
    publisher, follower = SnapshotPublisher(), Follower(limits or RecoveryLimits())
    for block in range(n_missed):
        publisher.publish(("store", block))
    follower.live(publisher.publish(("store", 100)))
    return publisher, follower


def test_late_joiner_knows_everything_after_a_snapshot() -> None:
    publisher, follower = late()
    assert (follower.stream.trust, follower.recovery.due(now=0.0)) == (Trust.PARTIAL, True)
    follower.recovery.begin(now=0.0)
    snapshot = publisher.snapshot()
    follower.live(publisher.publish(("remove", 3), ("store", 200)))  # while it is fetched
    follower.do(follower.recovery.complete(snapshot, now=1.0))
    assert (follower.blocks, follower.stream.trust) == (publisher.blocks, Trust.LIVE)
    follower.live(publisher.publish(("store", 300)))
    assert follower.blocks == publisher.blocks
    assert not follower.recovery.due(now=2.0)


def test_batches_before_the_snapshot_that_arrive_late_change_nothing() -> None:
    publisher, follower = late()
    follower.recovery.begin(now=0.0)
    slow = publisher.publish(("store", 7))
    publisher.publish(("remove", 7))
    follower.do(follower.recovery.complete(publisher.snapshot(), now=1.0))
    follower.live(slow)
    assert (follower.blocks, follower.stream.trust) == (publisher.blocks, Trust.LIVE)


def test_snapshot_of_another_life_is_refused_and_asked_again_later() -> None:
    publisher, follower = late()
    follower.do(follower.recovery.heartbeat("life-0", publisher.next_seq, now=0.0))
    follower.recovery.begin(now=0.0)
    publisher.restart()
    assert follower.recovery.complete(publisher.snapshot(), now=1.0) == []
    assert (
        follower.recovery.counters.stale,
        follower.recovery.due(now=1.5),
        follower.recovery.due(now=2.0),
    ) == (1, False, True)


def test_heartbeat_of_another_life_is_a_restart() -> None:
    publisher, follower = late()
    follower.do(follower.recovery.heartbeat("life-0", publisher.next_seq, now=0.0))
    publisher.restart()
    follower.do(follower.recovery.heartbeat("life-1", 0, now=1.0))
    assert (follower.blocks, follower.stream.epoch) == (set(), 1)


def test_pauses_double_up_to_a_limit() -> None:
    _, follower = late(limits=RecoveryLimits(backoff_s=1.0, max_backoff_s=4.0))
    now, pauses = 0.0, list[float]()
    for _ in range(4):
        assert follower.recovery.due(now=now)
        follower.recovery.begin(now=now)
        follower.recovery.failed(now=now)
        pause = next(each for each in (1.0, 2.0, 4.0) if follower.recovery.due(now=now + each))
        pauses.append(pause)
        now += pause
    assert pauses == [1.0, 2.0, 4.0, 4.0]


def test_snapshot_that_takes_too_long_is_given_up() -> None:
    publisher, follower = late()
    follower.recovery.begin(now=0.0)
    follower.recovery.tick(now=31.0)
    assert (follower.recovery.is_fetching, follower.recovery.counters.failed) == (False, 1)
    assert follower.recovery.complete(publisher.snapshot(), now=32.0) == []


def test_kept_batches_are_bounded() -> None:
    publisher, follower = late(limits=RecoveryLimits(max_kept=3))
    follower.recovery.begin(now=0.0)
    for block in range(5):
        follower.live(publisher.publish(("store", block)))
    assert (follower.recovery.is_fetching, follower.recovery.counters.failed) == (False, 1)


class RecoveringFollower(RuleBasedStateMachine):
    """A publisher with snapshots and heartbeats behind a network that loses and delays live batches."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.publisher, self.follower = SnapshotPublisher(), Follower()
        self.in_flight: list[tuple[int, Batch, float]] = []
        self.answer: Snapshot[Batch] | None = None

    @rule(
        changes=st.lists(
            st.tuples(st.sampled_from(["store", "store", "remove"]), st.integers(0, 9)),
            min_size=1,
            max_size=3,
        )
    )
    def publish(self, changes: list[Change]) -> None:
        self.in_flight.append(self.publisher.publish(*changes))

    @precondition(lambda self: self.in_flight)
    @rule()
    def deliver(self) -> None:
        self.follower.live(self.in_flight.pop(0))

    @precondition(lambda self: self.in_flight)
    @rule()
    def drop(self) -> None:
        self.in_flight.pop(0)

    @precondition(lambda self: self.answer is None and self.follower.recovery.due(now=self.now))
    @rule()
    def ask(self) -> None:
        self.follower.recovery.begin(now=self.now)
        self.answer = self.publisher.snapshot()

    @precondition(lambda self: self.answer is not None)
    @rule(arrives=st.booleans())
    def finish(self, arrives: bool) -> None:
        answer, self.answer = self.answer, None
        if arrives and answer is not None:
            self.follower.do(self.follower.recovery.complete(answer, now=self.now))
        else:
            self.follower.recovery.failed(now=self.now)

    @rule()
    def wait(self) -> None:
        self.now += 400.0
        self.follower.recovery.tick(now=self.now)

    @rule()
    def restart(self) -> None:
        """Restart the publisher, whose heartbeat is the first that arrives of the new life."""
        self.heartbeat()
        self.publisher.restart()
        self.in_flight.clear()
        self.answer = None
        self.heartbeat()

    @rule()
    def heartbeat(self) -> None:
        beat = self.follower.recovery.heartbeat(
            f"life-{self.publisher.life}", self.publisher.next_seq, now=self.now
        )
        self.follower.do(beat)

    @invariant()
    def a_live_stream_that_has_seen_all_knows_all(self) -> None:
        stream = self.follower.stream
        has_all = not self.in_flight and (stream.last_seq or -1) == self.publisher.next_seq - 1
        is_sure = stream.trust is Trust.LIVE and not self.follower.recovery.due(now=1e9)
        if has_all and is_sure and not self.follower.recovery.is_fetching and self.publisher.next_seq:
            assert self.follower.blocks == self.publisher.blocks

    def teardown(self) -> None:
        """Lose nothing more: the follower comes to know everything."""
        self.in_flight.clear()
        self.answer = None
        self.follower.recovery.failed(now=self.now)
        self.heartbeat()
        for _ in range(2):
            self.follower.live(self.publisher.publish(("store", 50)))
        self.now += 1000.0
        if self.follower.recovery.due(now=self.now):
            self.follower.recovery.begin(now=self.now)
            self.follower.do(self.follower.recovery.complete(self.publisher.snapshot(), now=self.now))
        assert (self.follower.blocks, self.follower.stream.trust) == (self.publisher.blocks, Trust.LIVE)


TestRecoveringFollower = RecoveringFollower.TestCase
