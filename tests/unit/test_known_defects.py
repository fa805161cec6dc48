"""Fifteen known defects of the field's reference KV index, each as the behaviour of kvatlas instead.

Two of them are elsewhere: the cost of a request is a benchmark (bench/), and the order of an endpoint's removal and its
queued events needs sockets (tests/integration/test_registration.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from kvatlas.events.actions import Action, Apply, Reset
from kvatlas.events.limits import StreamLimits
from kvatlas.events.model import BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.events.stream import PublisherStream, Trust
from kvatlas.events.wire import decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.match import PrefixMatch
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.prefix_source import OneTier
from kvatlas.scorers.prefix_cache import PrefixCacheScorer
from support.rating import rated

CPU, STORAGE = MediumName("CPU"), MediumName("SHARED_STORAGE")


def make_atlas(*endpoints: str, gpu_blocks: int | None = None) -> Atlas:
    specs = [
        TierSpec("gpu", ("GPU",), gpu_blocks),
        TierSpec("cpu", ("CPU",)),
        TierSpec("storage", ("SHARED_STORAGE",)),
    ]
    atlas = Atlas(tiers=TierTable(specs), seed=0, core=REFERENCE)
    for endpoint in endpoints or ("e",):
        atlas.add(endpoint)
    return atlas


def stored(
    first: int, n_blocks: int, *, block_size: int = 4, hash_from: int = 100, parent: int | None = None
) -> BlockStored:
    """Return the event for blocks `first`, `first + 1`, ... of the one prompt 0, 1, 2, ..."""
    return BlockStored(
        hashes=tuple(EngineHash(hash_from + number) for number in range(first, first + n_blocks)),
        parent=EngineHash(parent)
        if parent is not None
        else EngineHash(hash_from + first - 1)
        if first
        else None,
        tokens=array("I", range(first * block_size, (first + n_blocks) * block_size)),
        block_size=block_size,
    )


def hashes_only(n_blocks: int, medium: MediumName) -> BlockStored:
    hashes = tuple(EngineHash(100 + number) for number in range(n_blocks))
    return BlockStored(hashes, None, array("I"), 0, medium)


def match(atlas: Atlas, endpoint: str = "e", n_tokens: int = 64) -> PrefixMatch:
    return atlas.match(Prefix(array("I", range(n_tokens))))[endpoint]


def seqs(actions: Sequence[Action[int]]) -> list[int]:
    return [action.item for action in actions if isinstance(action, Apply)]


def test_1_replay_that_begins_after_the_requested_batch_does_not_black_out_the_publisher() -> None:
    stream = PublisherStream[int](can_replay=True, limits=StreamLimits(max_attempts=1))
    stream.connected()
    stream.replay_sent(now=0)
    for seq in (5, 6):
        stream.replayed(seq, seq, ts=seq + 1.0, now=0)
    assert seqs(stream.replay_end(now=0)) == [5, 6]
    assert seqs(stream.live(7, 7, ts=8.0)) == [7]
    assert stream.trust is Trust.PARTIAL


def test_2_store_with_unknown_parent_is_kept_with_all_its_descendants() -> None:
    atlas = make_atlas()
    atlas.apply("e", 0, [stored(0, 1), stored(2, 1), stored(3, 1), stored(1, 1)])
    assert match(atlas).tier_blocks["gpu"] == 4


def test_3_restart_in_place_is_noticed_without_replay() -> None:
    stream = PublisherStream[int](can_replay=False)
    for seq in range(3):
        stream.live(seq, seq, ts=seq + 1.0)
    assert isinstance(stream.live(0, 0, ts=50.0)[0], Reset)


def test_4_prefix_on_many_endpoints_is_found_on_every_one() -> None:
    names = [f"e{number}" for number in range(40)]
    atlas = make_atlas(*names)
    for name in names:
        atlas.apply(name, 0, [stored(0, 3)])
    assert {name: match(atlas, name).tier_blocks["gpu"] for name in names} == dict.fromkeys(names, 3)


def test_5_same_engine_hash_on_two_endpoints_means_the_block_of_each() -> None:
    atlas = make_atlas("e", "f")
    other = BlockStored((EngineHash(100),), None, array("I", [9, 9, 9, 9]), 4)
    atlas.apply("e", 0, [stored(0, 1)])
    atlas.apply("f", 0, [other, BlockRemoved((EngineHash(100),))])
    assert match(atlas, "e").tier_blocks["gpu"] == 1


def test_6_endpoints_of_different_block_sizes_are_each_matched_at_their_own() -> None:
    atlas = make_atlas("e", "f")
    atlas.apply("e", 0, [stored(0, 8, block_size=4)])
    atlas.apply("f", 0, [stored(0, 1, block_size=16), stored(1, 1, block_size=16)])
    assert (match(atlas, "e").usable_tokens, match(atlas, "f").usable_tokens) == (32, 32)


def test_7_one_block_in_cpu_memory_scores_more_than_nothing() -> None:
    atlas = make_atlas()
    atlas.apply("e", 0, [stored(0, 1), hashes_only(1, CPU), BlockRemoved((EngineHash(100),))])
    candidate = Candidate(name="e", address="h:1", prefix=match(atlas))
    (rating,) = rated(PrefixCacheScorer(OneTier("cpu")), RequestView(model="m", now=0.0), [candidate])
    assert rating.score == 1 / 16


def test_8_unknown_tier_earns_nothing() -> None:
    atlas = make_atlas()
    moon = BlockStored((EngineHash(100),), None, array("I"), 0, MediumName("MOON"))
    atlas.apply("e", 0, [stored(0, 1), moon, BlockRemoved((EngineHash(100),))])
    assert (match(atlas).tier_blocks, match(atlas).usable_blocks) == ({"gpu": 0, "cpu": 0, "storage": 0}, 0)


def test_9_storage_events_in_bin_and_two_element_batches_are_read_and_resolved() -> None:
    event = msgspec.msgpack.encode(["BlockStored", [100, 101], 0, [], 0, None, "SHARED_STORAGE"])
    batch = decode_batch(msgspec.msgpack.encode([1.5, [event]]))
    atlas = make_atlas()
    atlas.apply("e", 0, [stored(0, 2), *batch.events])
    assert match(atlas).tier_blocks["storage"] == 2


def test_10_malformed_event_leaves_the_rest_of_its_batch() -> None:
    good = ["BlockRemoved", [1]]
    batch = decode_batch(msgspec.msgpack.encode([1.5, [good, ["BlockMoved", [1]], good], 0]))
    assert (len(batch.events), batch.rejected) == (2, ("unknown_tag",))


def test_11_gaps_losses_duplicates_and_restarts_are_counted() -> None:
    stream = PublisherStream[int](can_replay=False)
    for seq in (0, 1, 1, 4):
        stream.live(seq, seq, ts=seq + 1.0)
    stream.live(0, 0, ts=50.0)
    counters = stream.counters
    assert (counters.gaps, counters.lost, counters.duplicates, counters.restarts) == (1, 2, 1, 1)


def test_12_removed_endpoint_leaves_nothing_for_one_of_the_same_name() -> None:
    atlas = make_atlas()
    atlas.apply("e", 0, [stored(0, 2), stored(7, 1, parent=999)])
    atlas.remove("e")
    atlas.add("e")
    assert atlas.match(Prefix(array("I", range(64)))) == {}
    assert atlas.ledger("e", 0).n_pending == 0


def test_13_block_announced_again_without_a_copy_is_not_pinned_for_ever() -> None:
    atlas = make_atlas(gpu_blocks=4)
    report: list[Event] = [stored(0, 4)] * 5
    gone = BlockRemoved(tuple(EngineHash(100 + number) for number in range(4)))
    atlas.apply("e", 0, [*report, gone])
    assert match(atlas).tier_blocks["gpu"] == 0


def test_15_every_endpoint_can_be_looked_into() -> None:
    atlas = make_atlas("e", "f")
    atlas.apply("e", 0, [stored(0, 2)])
    assert [row.residencies for row in atlas.occupancy("e")] == [2, 0, 0]
    assert [row.residencies for row in atlas.occupancy("f")] == [0, 0, 0]
