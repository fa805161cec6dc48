"""A replica that starts with a sibling's snapshot and the engine's replay knows what the sibling knows.

The snapshot passes over a network that loses letters, while the engine goes on. The engine's replay buffer is shorter than its
life, so that replay alone would not do.
"""

from __future__ import annotations

import random
from array import array

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.events.actions import Action, Apply, RequestReplay, Reset
from kvatlas.events.position import StreamPosition
from kvatlas.events.stream import PublisherStream, Trust
from kvatlas.events.wire import WireBatch, decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.sim.block_cache import BlockCache, Wait
from kvatlas.sim.kv_events import Event
from kvatlas.sim.sequence import TokenSequence
from support.snapshots import load, saved
from support.warm import Nursery

BLOCK, PIECE = 2, 300
PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=12), min_size=2, max_size=25)


class Follower:
    """One replica's view of the engine."""

    def __init__(self) -> None:
        tiers = TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))])
        self.atlas = Atlas(tiers=tiers, seed=0, core=REFERENCE)
        self.atlas.add("e")
        self.stream: PublisherStream[WireBatch] = PublisherStream(can_replay=True)
        self.asked_from: int | None = None

    def resume(self, position: StreamPosition | None) -> None:
        self.stream = PublisherStream(can_replay=True, position=position)

    def do(self, actions: list[Action[WireBatch]]) -> None:
        for action in actions:
            match action:
                case Apply(item=batch):
                    self.atlas.apply("e", 0, batch.events)
                case Reset():
                    self.atlas.reset("e", 0)
                case RequestReplay(start=start):
                    self.asked_from = start


class Engine:
    """One engine, which keeps its last messages for replay."""

    def __init__(self) -> None:
        self.cache = BlockCache(block_size=BLOCK, gpu_blocks=9, cpu_blocks=8)
        self.history: list[tuple[int, bytes]] = []
        self.clock = 1.0

    def serve(self, tokens: list[int]) -> None:
        admitted = self.cache.admit(TokenSequence(array("I", tokens), block_size=BLOCK))
        if isinstance(admitted, Wait):
            return
        lease, events = admitted
        if lease.loading:
            events += self.cache.complete_load(lease)
        self._publish(events + (self.cache.extend(lease, len(lease.sequence) - lease.n_computed) or []))
        offload = self.cache.offload(lease)
        self._publish([*offload.events, *self.cache.complete_transfer(offload)])
        self.cache.release(lease)

    def _publish(self, events: list[Event]) -> None:
        if events:
            self.clock += 1
            self.history.append((len(self.history), msgspec.msgpack.encode([self.clock, events, 0])))

    def send(self, follower: Follower, since: int) -> None:
        for seq, payload in self.history[since:]:
            batch = decode_batch(payload)
            follower.do(follower.stream.live(seq, batch, ts=batch.timestamp))

    def replay(self, follower: Follower, *, keeps_from: int) -> None:
        """Reply to a request with what the buffer has."""
        start, now = follower.asked_from or 0, self.clock
        follower.stream.replay_sent(now=now)
        for seq, payload in self.history[max(start, keeps_from) :]:
            batch = decode_batch(payload)
            follower.do(follower.stream.replayed(seq, batch, ts=batch.timestamp, now=now))
        follower.do(follower.stream.replay_end(now=now))


@given(prompts=PROMPTS, at=st.integers(0, 24), seed=st.integers(0, 2**16), percent=st.integers(0, 30))
def test_index_is_the_siblings_after_snapshot_positions_and_replay(
    prompts: list[list[int]], at: int, seed: int, percent: int
) -> None:
    engine, sibling, newcomer = Engine(), Follower(), Follower()
    sibling.do(sibling.stream.connected())
    engine.replay(sibling, keeps_from=0)
    for tokens in prompts[:at]:
        since = len(engine.history)
        engine.serve(tokens)
        engine.send(sibling, since)

    file = saved(sibling.atlas, {"e": 1}, position=sibling.stream.position())
    rng = random.Random(seed)
    nursery = Nursery(loses=lambda _: rng.random() * 100 < percent)
    nursery.ready("sibling", [file[start : start + PIECE] for start in range(0, len(file), PIECE)])
    taker = nursery.starting("newcomer")
    nursery.run(lambda: taker.is_done)
    assert taker.taken is not None, taker.why
    snapshot = load(b"".join(taker.taken[1]), newcomer.atlas)
    position = snapshot.endpoints["e"].ranks[0].position

    for tokens in prompts[at:]:  # meanwhile
        since = len(engine.history)
        engine.serve(tokens)
        engine.send(sibling, since)
    newcomer.resume(position)
    newcomer.do(newcomer.stream.connected())
    last_known = max(0, (position.next_seq or 0) - 1) if position is not None else 0
    engine.replay(newcomer, keeps_from=last_known)

    assert newcomer.stream.trust in (Trust.LIVE, Trust.DARK)
    assert newcomer.stream.last_seq == sibling.stream.last_seq
    assert contents(newcomer) == contents(sibling)


def contents(follower: Follower) -> bytes:
    """Return all that a replica knows of the engine."""
    return saved(follower.atlas, {"e": 1})
