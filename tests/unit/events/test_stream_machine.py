"""The publisher stream behind a lossy network that drops, repeats and reorders messages, with restarts."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvatlas.events.actions import Action, Apply, RequestReplay, Reset
from kvatlas.events.limits import StreamLimits
from kvatlas.events.position import StreamPosition
from kvatlas.events.stream import PublisherStream, Trust

Batch = tuple[int, int]
"""(life, sequence number): unique, so that a batch applied twice is noticed."""


class LossyStream(RuleBasedStateMachine):
    """A publisher with a bounded replay buffer, an unreliable network, and a stream.

    The process around the stream is restarted too, and continues from a position saved then or earlier.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0.0
        self.life = 0
        self.history: list[tuple[float, Batch]] = []
        self.offset = 0  # batches that rolled out of the replay buffer
        self.in_flight: list[tuple[int, float, Batch]] = []
        self.request: int | None = None
        self.stream = self.follow(StreamPosition())
        self.applied: list[Batch] = []
        self.saved = StreamPosition(), list[Batch]()
        self.do(self.stream.connected())

    def follow(self, position: StreamPosition) -> PublisherStream[Batch]:
        return PublisherStream(can_replay=True, limits=StreamLimits(max_held=10_000), position=position)

    def do(self, actions: list[Action[Batch]]) -> None:
        for action in actions:
            match action:
                case Apply(seq=seq, item=item):
                    assert item[1] == seq
                    self.applied.append(item)
                case Reset():
                    self.applied.clear()
                case RequestReplay(start=start):
                    self.request = start

    def now(self) -> float:
        self.clock += 1.0
        return self.clock

    def publish_one(self) -> tuple[int, float, Batch]:
        seq = self.offset + len(self.history)
        self.history.append((self.now(), (self.life, seq)))
        return (seq, *self.history[-1])

    @rule(n=st.integers(1, 5))
    def publish(self, n: int) -> None:
        self.in_flight += [self.publish_one() for _ in range(n)]

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """Deliver one message, not always the oldest, sometimes twice."""
        index = data.draw(st.sampled_from([0, 0, 0, min(1, len(self.in_flight) - 1)]))
        seq, ts, item = self.in_flight.pop(index)
        for _ in range(data.draw(st.sampled_from([1, 1, 2]))):
            self.do(self.stream.live(seq, item, ts=ts))

    @precondition(lambda self: self.in_flight)
    @rule()
    def drop(self) -> None:
        self.in_flight.pop(0)

    @rule()
    def restart(self) -> None:
        """Restart the publisher; messages of the old life do not arrive after the new connection."""
        self.life += 1
        self.history.clear()
        self.in_flight.clear()
        self.offset = 0
        self.stream.disconnected()
        self.do(self.stream.connected())

    @rule()
    def save(self) -> None:
        self.saved = self.stream.position(), [*self.applied]

    @rule(overtaken=st.booleans())
    def restart_follower(self, overtaken: bool) -> None:
        """Restart the process around the stream from a saved position; a batch may overtake the connection report."""
        position, applied = self.saved
        self.stream, self.applied, self.request = self.follow(position), [*applied], None
        assert self.stream.position() == position
        assert self.stream.trust is (Trust.DARK if position.next_seq is None else Trust.STALE)
        self.in_flight.clear()
        if not overtaken:
            self.do(self.stream.connected())

    @rule(keep=st.integers(0, 10))
    def roll_buffer(self, keep: int) -> None:
        cut = max(0, len(self.history) - max(keep, 1))
        self.offset += cut
        del self.history[:cut]

    @precondition(lambda self: self.request is not None)
    @rule(data=st.data(), end=st.booleans())
    def answer(self, data: st.DataObject, end: bool) -> None:
        """Answer a replay request, dropping some messages and perhaps the end marker."""
        start, self.request = self.request or 0, None
        self.stream.replay_sent(now=self.clock)
        for number, (ts, item) in enumerate(self.history, start=self.offset):
            asked_again = self.request is not None
            if number >= start and not asked_again and data.draw(st.integers(0, 9)) > 0:
                self.do(self.stream.replayed(number, item, ts=ts, now=self.now()))
        if end and self.request is None:
            self.do(self.stream.replay_end(now=self.now()))

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.stream.replay_sent(now=self.clock)
        self.clock += seconds
        self.do(self.stream.tick(now=self.clock))

    def settle(self) -> None:
        """End the faults: messages in flight are lost, and every later request is answered in full."""
        self.in_flight.clear()
        self.do(self.stream.live(*self.last_message()[:1], self.last_message()[2], ts=self.last_message()[1]))
        for _ in range(100):
            if not self.stream.awaits_replay:
                break
            start, self.request = self.request, None
            self.stream.replay_sent(now=self.clock)
            if start is not None:
                for number, (ts, item) in enumerate(self.history, start=self.offset):
                    if number >= start and self.request is None:
                        self.do(self.stream.replayed(number, item, ts=ts, now=self.now()))
                if self.request is None:
                    self.do(self.stream.replay_end(now=self.now()))
            self.clock += 30
            self.do(self.stream.tick(now=self.clock))
        assert not self.stream.awaits_replay

    def last_message(self) -> tuple[int, float, Batch]:
        if not self.history:
            self.publish_one()
        ts, item = self.history[-1]
        return item[1], ts, item

    @invariant()
    def applied_is_ordered_and_of_one_life(self) -> None:
        seqs = [seq for _, seq in self.applied]
        assert seqs == sorted(set(seqs))
        one_life = len({life for life, _ in self.applied}) <= 1
        assert one_life or self.stream.trust is not Trust.LIVE

    def teardown(self) -> None:
        """Check the end: the newest batch was applied, and trust is live only if all before it were."""
        self.settle()
        assert self.applied[-1] == self.history[-1][1]
        # a publisher that counts from 1 cannot be told from one whose very first batch nobody has any more
        known_from = 1 if self.applied[0][1] == 1 else 0
        complete = self.applied == [
            (self.life, seq) for seq in range(known_from, self.offset + len(self.history))
        ]
        assert complete or self.stream.trust is Trust.PARTIAL


LossyStream.TestCase.settings = settings(stateful_step_count=40)
TestLossyStream = LossyStream.TestCase


class ForgedStream(LossyStream):
    """The same, and a stranger who publishes under the publisher's name, any number at any time.

    Afterwards the publisher's own batches bring the stream back to the truth. Its history reaches back to the start and
    its messages arrive: nothing could contradict a forged batch in the place of one that is lost.
    """

    def roll_buffer(self, keep: int) -> None:
        """Keep the whole history: not a rule here."""

    def drop(self) -> None:
        """Deliver every message: not a rule here."""

    @rule(
        number=st.one_of(st.integers(-3, 40), st.sampled_from([1 << 20, 1 << 25, 1 << 47])),
        ts=st.sampled_from([0.0, -1.0, 1.25, 1800.25, 1e18]),
        n_messages=st.sampled_from([1, 1, 1, 3]),
    )
    def forge(self, number: int, ts: float, n_messages: int) -> None:
        """Deliver batches with numbers relative to the publisher's next one, or absolute if they are large."""
        first = number if number >= 1 << 20 else max(0, self.offset + len(self.history) + number)
        for seq in range(first, first + n_messages):
            self.do(self.stream.live(seq, (-1, seq), ts=ts, latest=self.clock + 3600))

    @invariant()
    def applied_is_ordered_and_of_one_life(self) -> None:
        """Check only the order: a forged batch that looks true is applied until it is found out."""
        seqs = [seq for _, seq in self.applied]
        assert seqs == sorted(set(seqs))

    def settle(self) -> None:
        for _ in range(3):
            for seq, ts, item in [*self.in_flight, *(self.publish_one() for _ in range(20))]:
                self.do(self.stream.live(seq, item, ts=ts, latest=self.clock + 3600))
            super().settle()

    def teardown(self) -> None:
        super().teardown()
        assert all(life == self.life for life, _ in self.applied)


ForgedStream.TestCase.settings = settings(stateful_step_count=30)
TestForgedStream = ForgedStream.TestCase
