"""Sources of a tier: events, inference, routing; shared tiers; hashes of cache libraries."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from kvatlas.events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.sources import PATIENCE_S, SourceChange
from kvatlas.indexer.tiers import TierId, TierSource, TierSpec, TierTable

BLOCK = 4
GPU, CPU, DISK = MediumName("GPU"), MediumName("CPU"), MediumName("FS")
DEFAULT = (TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",)), TierSpec("storage", ("FS",)))


def make_atlas(*specs: TierSpec, endpoints: tuple[str, ...] = ("e",)) -> tuple[Atlas, list[SourceChange]]:
    changes: list[SourceChange] = []
    atlas = Atlas(
        tiers=TierTable(specs or DEFAULT),
        seed=0,
        core=REFERENCE,
        on_source=lambda _endpoint, _rank, change: changes.append(change),
    )
    for endpoint in endpoints:
        atlas.add(endpoint)
    return atlas, changes


def tokens(n_blocks: int) -> array[int]:
    return array("I", range(n_blocks * BLOCK))


def stored(n_blocks: int, medium: MediumName = GPU, *, with_tokens: bool = True) -> BlockStored:
    """Build the store event of the first blocks, from an engine that sends the inputs of its hashes."""
    return BlockStored(
        hashes=tuple(EngineHash(100 + number) for number in range(n_blocks)),
        parent=None,
        tokens=tokens(n_blocks) if with_tokens else array("I"),
        block_size=BLOCK if with_tokens else 0,
        medium=medium,
        extra_keys=(None,) * n_blocks if medium == GPU else None,
    )


def removed(n_blocks: int, medium: MediumName = GPU) -> BlockRemoved:
    return BlockRemoved(tuple(EngineHash(100 + number) for number in range(n_blocks)), medium)


def take(atlas: Atlas, *events: Event, endpoint: str = "e") -> None:
    atlas.apply(endpoint, 0, events)


def held(atlas: Atlas, endpoint: str = "e", n_blocks: int = 8) -> dict[str, int]:
    return atlas.match(Prefix(tokens(n_blocks)))[endpoint].tier_blocks


def offload(atlas: Atlas) -> None:
    """Report offloading for longer than the index waits for events."""
    atlas.ledger("e", 0).offloads(now=0.0)
    atlas.ledger("e", 0).offloads(now=PATIENCE_S)


def test_tier_has_no_source_until_there_is_evidence() -> None:
    atlas, changes = make_atlas()
    assert [row.source for row in atlas.occupancy("e")] == [None, None, None]
    take(atlas, stored(2))
    assert [(change.tier, change.new) for change in changes] == [(TierId(0), TierSource.EVENTS)]


def test_offloading_engine_that_tells_nothing_is_inferred_after_patience() -> None:
    atlas, changes = make_atlas()
    take(atlas, stored(3))
    atlas.ledger("e", 0).offloads(now=0.0)
    assert (held(atlas)["cpu"], atlas.occupancy("e")[1].dark) == (0, True)
    atlas.ledger("e", 0).offloads(now=PATIENCE_S)
    assert (changes[-1].new, held(atlas)["cpu"]) == (TierSource.INFERRED, 3)


def test_inferred_copy_survives_gpu_eviction_and_gpu_reset() -> None:
    atlas, _ = make_atlas()
    take(atlas, stored(1))
    offload(atlas)
    take(atlas, stored(4), removed(4), AllBlocksCleared())
    assert held(atlas) == {"gpu": 0, "cpu": 4, "storage": 0}


def test_inferred_tier_is_bounded_by_recency() -> None:
    atlas, _ = make_atlas(DEFAULT[0], replace(DEFAULT[1], capacity=3))
    take(atlas, stored(1))
    offload(atlas)
    take(atlas, stored(6))
    assert held(atlas)["cpu"] == 3


def test_inferred_tier_without_a_bound_is_bounded_like_the_fastest() -> None:
    atlas, _ = make_atlas()
    take(atlas, stored(6))
    offload(atlas)
    atlas.set_capacity("e", TierId(0), 4)
    assert atlas.occupancy("e")[1].residencies == 4


def test_inferred_tier_has_the_bound_it_is_given_and_without_it_the_fastest_tiers_again() -> None:
    atlas, _ = make_atlas()
    take(atlas, stored(6))
    offload(atlas)
    cpu: list[int | None] = []
    for tier, n_blocks in ((1, 5), (0, 2), (1, None), (0, 3)):
        atlas.set_capacity("e", TierId(tier), n_blocks)
        cpu.append(atlas.occupancy("e")[1].capacity)
    assert cpu == [5, 5, 2, 3]


def test_first_usable_event_takes_the_place_of_inference() -> None:
    atlas, changes = make_atlas()
    take(atlas, stored(4))
    offload(atlas)
    take(atlas, stored(2, CPU, with_tokens=False))
    assert [change.new for change in changes[-2:]] == [TierSource.INFERRED, TierSource.EVENTS]
    assert (held(atlas)["cpu"], atlas.occupancy("e")[1].dark) == (2, False)


def test_events_of_a_tier_configured_otherwise_are_counted_and_not_believed() -> None:
    atlas, _ = make_atlas(DEFAULT[0], replace(DEFAULT[1], source=TierSource.INFERRED))
    take(atlas, stored(4), stored(2, CPU), removed(1, CPU))
    assert (held(atlas)["cpu"], atlas.ledger("e", 0).counters.ignored_tiers) == (4, 1)


def test_bound_that_stood_in_for_removals_goes_with_inference_and_with_a_new_life() -> None:
    for goes in ("events", "new life"):
        atlas, _ = make_atlas()
        atlas.set_capacity("e", TierId(0), 2)
        take(atlas, stored(2))
        offload(atlas)
        assert atlas.occupancy("e")[1].capacity == 2
        if goes == "new life":
            atlas.reset("e", 0)
        take(atlas, stored(2), stored(2, CPU, with_tokens=False))
        assert atlas.occupancy("e")[1].capacity is None
        more = BlockStored(
            tuple(EngineHash(500 + n) for n in range(5)),
            None,
            array("I", range(100, 120)),
            BLOCK,
            extra_keys=(None,) * 5,
        )
        take(atlas, more, replace(more, medium=CPU, tokens=array("I"), block_size=0))
        assert atlas.occupancy("e")[1].residencies == 7


def test_tier_configured_for_events_is_never_inferred() -> None:
    atlas, changes = make_atlas(DEFAULT[0], replace(DEFAULT[1], source=TierSource.EVENTS))
    take(atlas, stored(4))
    offload(atlas)
    assert (held(atlas)["cpu"], [change.tier for change in changes]) == (0, [TierId(0)])


def test_endpoint_without_events_is_learned_from_routing() -> None:
    atlas, changes = make_atlas()
    ledger = atlas.ledger("e", 0)
    ledger.without_events()
    ledger.use_block_size(BLOCK)
    atlas.set_capacity("e", TierId(0), 3)
    atlas.routed("e", Prefix(tokens(2)))
    assert (changes[-1].new, held(atlas)["gpu"]) == (TierSource.ROUTING, 2)
    atlas.routed("e", Prefix(tokens(5)))
    assert held(atlas)["gpu"] == 3


def test_routing_twice_does_not_count_a_block_twice() -> None:
    atlas, _ = make_atlas()
    ledger = atlas.ledger("e", 0)
    ledger.without_events()
    ledger.use_block_size(BLOCK)
    atlas.set_capacity("e", TierId(0), 4)
    for _ in range(5):
        atlas.routed("e", Prefix(tokens(2)))
    other = array("I", range(1000, 1000 + 2 * BLOCK))
    atlas.routed("e", Prefix(other))
    assert held(atlas)["gpu"] == 2


def test_routing_renews_recency_in_tiers_known_from_events() -> None:
    atlas, _ = make_atlas(DEFAULT[0], replace(DEFAULT[1], capacity=2))
    other = BlockStored((EngineHash(7),), None, array("I", [9] * BLOCK), BLOCK, extra_keys=(None,))
    third = BlockStored((EngineHash(8),), None, array("I", [8] * BLOCK), BLOCK, extra_keys=(None,))
    in_cpu = [replace(event, medium=CPU, tokens=array("I"), block_size=0) for event in (other, third)]
    take(atlas, stored(1), other, third, stored(1, CPU, with_tokens=False), in_cpu[0])
    atlas.routed("e", Prefix(tokens(1)))
    take(atlas, in_cpu[1])
    assert held(atlas)["cpu"] == 1


@pytest.mark.parametrize(
    ("is_matched", "kept"), [pytest.param(True, 1, id="left_alone"), pytest.param(False, 0, id="told")]
)
def test_routing_leaves_ranks_alone_that_do_not_hold_the_first_block(*, is_matched: bool, kept: int) -> None:
    atlas, _ = make_atlas(replace(DEFAULT[0], capacity=2))
    atlas.add("e", n_ranks=2)
    other, third = (
        BlockStored((EngineHash(number),), None, array("I", [number] * BLOCK), BLOCK) for number in (8, 9)
    )
    prompt = Prefix(array("I", range(2 * BLOCK + 1)))
    atlas.apply("e", 0, [stored(2)])
    atlas.apply("e", 1, [stored(2), removed(1), other])
    match = atlas.match(prompt)["e"]
    assert match.rank_usable_tokens == {0: 2 * BLOCK}

    atlas.routed("e", prompt, match if is_matched else None)
    atlas.apply("e", 1, [third])

    of_rank_1 = atlas.match(Prefix(array("I", [8] * (BLOCK + 1))))["e"].rank_usable_tokens
    assert of_rank_1 == ({1: BLOCK} if kept else {})


def test_new_life_forgets_the_sources_too() -> None:
    atlas, _ = make_atlas()
    take(atlas, stored(4))
    offload(atlas)
    atlas.reset("e", 0)
    assert [row.source for row in atlas.occupancy("e")] == [None, None, None]
    assert not atlas.occupancy("e")[1].dark


def test_slower_tier_is_emptied_by_a_reset_only_where_configured() -> None:
    atlas, _ = make_atlas(DEFAULT[0], replace(DEFAULT[1], cleared_on_reset=True), DEFAULT[2])
    take(
        atlas,
        stored(2),
        stored(2, CPU, with_tokens=False),
        stored(2, DISK, with_tokens=False),
        AllBlocksCleared(),
    )
    assert held(atlas) == {"gpu": 0, "cpu": 0, "storage": 2}


def shared_atlas() -> Atlas:
    storage = replace(DEFAULT[2], shared=True)
    atlas, _ = make_atlas(DEFAULT[0], DEFAULT[1], storage, endpoints=("e", "f"))
    for endpoint in ("e", "f"):
        take(atlas, stored(1), endpoint=endpoint)
    return atlas


def test_shared_tier_is_there_for_every_endpoint() -> None:
    atlas = shared_atlas()
    take(atlas, stored(3), stored(3, DISK, with_tokens=False))
    assert held(atlas, "f") == {"gpu": 1, "cpu": 0, "storage": 3}
    assert atlas.match(Prefix(tokens(8)))["f"].usable_blocks == 3


def test_shared_block_outlives_the_endpoint_that_stored_it_and_goes_with_one_removal() -> None:
    atlas = shared_atlas()
    for endpoint in ("e", "f"):
        take(atlas, stored(3), stored(3, DISK, with_tokens=False), endpoint=endpoint)
    atlas.remove("e")
    assert held(atlas, "f")["storage"] == 3
    take(atlas, removed(3, DISK), endpoint="f")
    assert held(atlas, "f")["storage"] == 0


def test_shared_tier_is_shared_only_within_a_space() -> None:
    atlas = shared_atlas()
    atlas.add("other", space="another model")
    take(atlas, stored(1), endpoint="other")
    take(atlas, stored(3), stored(3, DISK, with_tokens=False))
    assert (held(atlas, "f")["storage"], held(atlas, "other")["storage"]) == (3, 0)
    take(atlas, stored(2), stored(2, DISK, with_tokens=False), endpoint="other")
    atlas.remove("other")
    atlas.add("other", space="another model")
    take(atlas, stored(1), endpoint="other")
    assert held(atlas, "other")["storage"] == 0


def chunk(number: int, parent: int | None) -> BlockStored:
    """One LMCache chunk of two engine blocks, under a hash that the engine never uses."""
    first = number * 2 * BLOCK
    return BlockStored(
        hashes=(EngineHash(9000 + number),),
        parent=None if parent is None else EngineHash(9000 + parent),
        tokens=array("I", range(first, first + 2 * BLOCK)),
        block_size=2 * BLOCK,
        medium=CPU,
    )


def test_chunks_under_foreign_hashes_are_keyed_by_their_tokens() -> None:
    atlas, _ = make_atlas()
    take(atlas, stored(1), chunk(0, None), chunk(1, 0))
    assert held(atlas)["cpu"] == 4
    assert atlas.match(Prefix(tokens(8)))["e"].usable_blocks == 4
    take(atlas, BlockRemoved((EngineHash(9001),), CPU))
    assert held(atlas)["cpu"] == 2


def test_foreign_chunk_without_its_parent_is_counted() -> None:
    atlas, _ = make_atlas()
    take(atlas, stored(1), chunk(1, 0))
    assert (held(atlas)["cpu"], atlas.ledger("e", 0).counters.foreign_orphans) == (0, 1)


@pytest.mark.parametrize("medium", [CPU, DISK])
def test_store_only_engines_are_bounded_by_capacity(medium: MediumName) -> None:
    atlas, _ = make_atlas(DEFAULT[0], *(replace(spec, capacity=3) for spec in DEFAULT[1:]))
    take(atlas, stored(8), stored(8, medium, with_tokens=False))
    tier = "cpu" if medium == CPU else "storage"
    assert held(atlas)[tier] == 3
