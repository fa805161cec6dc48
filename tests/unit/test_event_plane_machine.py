"""The whole event plane with a simulated engine and a network that loses, repeats, disconnects and restarts.

kvatlas restarts too, from a recent or an old snapshot, while the engine keeps running or restarts. When the faults stop
and replay is complete, the index predicts the exact reuse of every prompt, or the publisher's trust is lowered.
"""

from __future__ import annotations

from array import array
from contextlib import suppress

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from kvatlas.events.actions import Action, Apply, RequestReplay, Reset
from kvatlas.events.errors import WireError
from kvatlas.events.limits import StreamLimits
from kvatlas.events.position import StreamPosition
from kvatlas.events.stream import PublisherStream, Trust
from kvatlas.events.wire import WireBatch, decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.sim.block_cache import BlockCache, Wait
from kvatlas.sim.kv_events import Event
from kvatlas.sim.sequence import Lora, TokenSequence
from support.snapshots import load, saved

BLOCK = 2
ADAPTERS = (None, None, Lora("a", 1))
SALTS = (None, None, "s")
Message = tuple[int, bytes]
"""(sequence number, payload) as the publisher sends it."""


class EventPlane(RuleBasedStateMachine):
    """One engine, its publisher, the network and kvatlas."""

    chunk_blocks = 1
    self_describing = True

    def __init__(self) -> None:
        super().__init__()
        self.clock = 1.0
        self.prompts: dict[tuple[tuple[int, ...], str | None, str | None], TokenSequence] = {}
        self.stream = self.make_stream(None)
        self.atlas = self.make_atlas()
        self.snapshot = b""
        self.applied_at_snapshot = 0
        self.request: int | None = None
        self.n_applied = 0
        self.unknown_before = 0
        self.start_engine()

    def make_stream(self, position: StreamPosition | None) -> PublisherStream[WireBatch]:
        return PublisherStream(can_replay=True, limits=StreamLimits(max_held=10_000), position=position)

    def make_atlas(self) -> Atlas:
        tiers = TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))])
        atlas = Atlas(tiers=tiers, seed=0, core=REFERENCE)
        atlas.add("e")
        return atlas

    def start_engine(self) -> None:
        self.cache = BlockCache(
            block_size=BLOCK,
            gpu_blocks=9,
            cpu_blocks=8,
            chunk_blocks=self.chunk_blocks,
            self_describing=self.self_describing,
        )
        self.history: list[Message] = []
        self.offset = 0
        self.flying: list[Message] = []
        self.do(self.stream.connected())

    # -- the engine -----------------------------------------------------------------------------------------------

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=10),
        n_generated=st.integers(0, 4),
        adapter=st.sampled_from(ADAPTERS),
        salt=st.sampled_from(SALTS),
    )
    def serve(self, tokens: list[int], n_generated: int, adapter: Lora | None, salt: str | None) -> None:
        """Run one request from admission to release, publishing after every step as vLLM does."""
        sequence = TokenSequence(array("I", tokens), block_size=BLOCK, lora=adapter, salt=salt)
        self.prompts[tuple(tokens), adapter.name if adapter else None, salt] = sequence
        admitted = self.cache.admit(
            TokenSequence(array("I", tokens), block_size=BLOCK, lora=adapter, salt=salt)
        )
        if isinstance(admitted, Wait):
            return
        lease, events = admitted
        if lease.loading:
            events += self.cache.complete_load(lease)
        n_left = len(lease.sequence) - lease.n_computed
        self.publish(events + (self.cache.extend(lease, n_left) or []))
        offload = self.cache.offload(lease)
        for token in range(n_generated):
            lease.sequence.extend([token % 2])
            self.publish(self.cache.extend(lease, 1) or [])
        self.publish([*offload.events, *self.cache.complete_transfer(offload)])
        self.cache.release(lease)

    @rule()
    def reset_prefix_cache(self) -> None:
        self.publish(self.cache.reset() or [])

    @rule()
    def restart(self) -> None:
        self.stream.disconnected()
        self.start_engine()

    def publish(self, events: list[Event]) -> None:
        if events:
            message = (self.offset + len(self.history), msgspec.msgpack.encode([self.now(), events, 0]))
            self.history.append(message)
            self.flying.append(message)

    # -- the network ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.flying)
    @rule(n_messages=st.integers(1, 8), copies=st.sampled_from([1, 1, 2]), reordered=st.booleans())
    def deliver(self, n_messages: int, copies: int, reordered: bool) -> None:
        arriving, self.flying = self.flying[:n_messages], self.flying[n_messages:]
        for message in reversed(arriving) if reordered else arriving:
            for _ in range(copies):
                self.hear(message)

    @precondition(lambda self: self.flying)
    @rule()
    def lose(self) -> None:
        self.flying.pop(0)

    @precondition(lambda self: self.flying)
    @rule(at=st.integers(0, 200), value=st.integers(0, 255))
    def corrupt(self, at: int, value: int) -> None:
        """Garble a payload, which is read or refused but never fatal; the message itself is lost."""
        _, payload = self.flying.pop(0)
        garbled = bytearray(payload)
        garbled[at % len(garbled)] = value
        with suppress(WireError):
            decode_batch(bytes(garbled))

    @rule(n_kept=st.integers(1, 6))
    def roll_replay_buffer(self, n_kept: int) -> None:
        cut = max(0, len(self.history) - n_kept)
        self.offset += cut
        del self.history[:cut]

    @precondition(lambda self: self.request is not None)
    @rule(lost=st.sets(st.integers(0, 20), max_size=3), ended=st.booleans())
    def answer(self, lost: set[int], ended: bool) -> None:
        self.answer_request(lost, ended=ended)

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.stream.replay_sent(now=self.clock)
        self.clock += seconds
        self.do(self.stream.tick(now=self.clock))

    # -- kvatlas --------------------------------------------------------------------------------------------------

    @rule()
    def write_snapshot(self) -> None:
        self.snapshot = saved(self.atlas, {"e": 1}, position=self.stream.position())
        self.applied_at_snapshot = self.n_applied

    @precondition(lambda self: self.snapshot)
    @rule(at_once=st.booleans())
    def restart_kvatlas(self, at_once: bool) -> None:
        """Restart kvatlas: messages in transit are lost, and the next one may overtake the notice of the new connection."""
        self.atlas = self.make_atlas()
        position = load(self.snapshot, self.atlas).endpoints["e"].ranks[0].position
        self.stream = self.make_stream(position)
        self.n_applied, self.unknown_before = self.applied_at_snapshot, 0
        self.request = None
        self.flying.clear()
        if at_once:
            self.do(self.stream.connected())

    def hear(self, message: Message) -> None:
        seq, payload = message
        batch = decode_batch(payload)
        self.do(self.stream.live(seq, batch, ts=batch.timestamp))

    def answer_request(self, lost: set[int], *, ended: bool) -> None:
        start, self.request = self.request or 0, None
        self.stream.replay_sent(now=self.clock)
        for number, (seq, payload) in enumerate(list(self.history)):
            if seq >= start and number not in lost and self.request is None:
                batch = decode_batch(payload)
                self.do(self.stream.replayed(seq, batch, ts=batch.timestamp, now=self.now()))
        if ended and self.request is None:
            self.do(self.stream.replay_end(now=self.now()))

    def do(self, actions: list[Action[WireBatch]]) -> None:
        for action in actions:
            match action:
                case Apply(item=batch):
                    assert batch.rejected == ()
                    self.atlas.apply("e", 0, batch.events)
                    self.n_applied += 1
                case Reset():
                    self.atlas.reset("e", 0)
                    self.n_applied = 0
                    self.unknown_before = self.atlas.ledger("e", 0).counters.unknown_removals
                case RequestReplay(start=start):
                    self.request = start

    def now(self) -> float:
        self.clock += 1.0
        return self.clock

    def settle(self) -> None:
        """End the faults: the newest message arrives, and every replay request gets a full reply."""
        self.flying.clear()
        if self.history:
            self.hear(self.history[-1])
        for _ in range(100):
            if not self.stream.awaits_replay:
                return
            if self.request is not None:
                self.answer_request(set(), ended=True)
            self.clock += 30
            self.do(self.stream.tick(now=self.clock))
        raise AssertionError("the replay did not end")

    def teardown(self) -> None:
        self.settle()
        complete = self.stream.trust is Trust.LIVE and not self.starts_late()
        for (tokens, adapter, salt), sequence in self.prompts.items():
            hit = self.cache.lookup(sequence)
            matches = self.atlas.match(Prefix(array("I", tokens), lora=adapter, salt=salt))
            predicted = matches["e"].usable_tokens if matches else 0
            if complete:
                assert predicted == hit.gpu_blocks * BLOCK + hit.cpu_tokens
        if complete:
            assert self.atlas.ledger("e", 0).counters.unknown_removals == self.unknown_before

    def starts_late(self) -> bool:
        """Return whether the first batch may be lost, which looks the same as a publisher that counts from 1."""
        return self.n_applied == (self.stream.last_seq or 0) > 0


class PlaceholderChunks(EventPlane):
    """CPU events without tokens, one hash per chunk of two blocks."""

    chunk_blocks = 2
    self_describing = False


class DescribedChunks(EventPlane):
    """CPU events with tokens, chunks of two blocks."""

    chunk_blocks = 2


@pytest.mark.slow
@pytest.mark.parametrize("machine", [EventPlane, PlaceholderChunks, DescribedChunks])
def test_index_equals_the_engine_once_faults_stop(machine: type[EventPlane]) -> None:
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=30))
