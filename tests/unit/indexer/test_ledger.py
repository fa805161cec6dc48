"""One publisher's events as residencies: orphans, token-less stores, chunks, copies, groups, resets."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from kvatlas.events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    ExtraKey,
    MediumName,
    MultimodalKey,
)
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE
from kvatlas.indexer.groups import MAX_GROUPS
from kvatlas.indexer.ledger import RankLedger
from kvatlas.indexer.match import PrefixMatch
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable

BLOCK = 4
CPU = MediumName("CPU")
Extras = Sequence[Sequence[ExtraKey] | None]


def tokens(n_blocks: int, start: int = 0) -> array[int]:
    return array("I", range(start * BLOCK, (start + n_blocks) * BLOCK))


def hashes(*numbers: int) -> tuple[EngineHash, ...]:
    """Return the engine hashes of the blocks with these numbers; they start at 1000, since 0 means none."""
    return tuple(EngineHash(1000 + number) for number in numbers)


def store(
    *numbers: int, medium: str = "GPU", lora: str | None = None, extras: Extras | None = None, group: int = 0,
    kind: str | None = None, window: int | None = None, with_tokens: bool = True, base: int = 0,
) -> BlockStored:  # fmt: skip
    """Build the store event of consecutive blocks of the prompt 0, 1, 2, ...; `base` separates hashes of prompts."""
    first = numbers[0] if numbers else 0
    return BlockStored(
        hashes=tuple(EngineHash(h + base) for h in hashes(*numbers)),
        parent=EngineHash(1000 + first - 1 + base) if first and with_tokens else None,
        tokens=tokens(len(numbers), first) if with_tokens else array("I"),
        block_size=BLOCK if with_tokens else 0,
        medium=MediumName(medium),
        lora_name=lora,
        extra_keys=None if extras is None else tuple(None if e is None else tuple(e) for e in extras),
        group=group,
        kind=kind,
        window=window,
    )


def remove(*numbers: int, medium: str = "GPU", group: int = 0) -> BlockRemoved:
    return BlockRemoved(hashes(*numbers), MediumName(medium), group)


def make_atlas(*, chunk: int | None = None, capacity: int | None = None) -> Atlas:
    tiers = TierTable([TierSpec("gpu", ("GPU",), capacity), TierSpec("cpu", ("CPU",), None, chunk)])
    atlas = Atlas(tiers=tiers, seed=0, core=REFERENCE)
    atlas.add("e")
    return atlas


def taken(atlas: Atlas, *events: Event) -> RankLedger:
    atlas.apply("e", 0, events)
    return atlas.ledger("e", 0)


def match(
    atlas: Atlas, n_blocks: int = 8, *, lora: str | None = None, salt: str | None = None
) -> PrefixMatch:
    return atlas.match(Prefix(tokens(n_blocks), lora=lora, salt=salt))["e"]


def test_stored_blocks_match_the_prompt() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, 2))
    assert match(atlas).tier_blocks == {"gpu": 3, "cpu": 0}


def test_removal_from_gpu_never_touches_cpu() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1), store(0, 1, medium="CPU", with_tokens=False), remove(0, 1))
    assert match(atlas).tier_blocks == {"gpu": 0, "cpu": 2}


def test_hole_closes_when_it_is_refilled() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, 2), remove(1))
    assert match(atlas).tier_blocks["gpu"] == 1
    taken(atlas, store(1))
    assert match(atlas).tier_blocks["gpu"] == 3


def test_child_before_its_parent_is_parked_and_adopted() -> None:
    atlas = make_atlas()
    ledger = taken(atlas, store(0), store(4), store(2, 3))
    assert (match(atlas).tier_blocks["gpu"], ledger.hashes.n_parked, ledger.n_pending) == (1, 3, 3)
    taken(atlas, store(1))
    assert (match(atlas).tier_blocks["gpu"], ledger.hashes.n_parked, ledger.n_pending) == (5, 0, 0)


def test_orphan_removed_before_its_parent_comes_is_not_resurrected() -> None:
    atlas = make_atlas()
    taken(atlas, store(0), store(2), remove(2), store(1))
    assert match(atlas).tier_blocks["gpu"] == 2


def test_tokenless_store_resolves_through_the_hash_also_after_gpu_eviction() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1), remove(0, 1), store(0, medium="CPU", with_tokens=False))
    assert match(atlas).tier_blocks == {"gpu": 0, "cpu": 1}


def test_tokenless_store_waits_for_the_gpu_event_that_explains_it() -> None:
    atlas = make_atlas()
    ledger = taken(
        atlas, store(0, medium="CPU", with_tokens=False), store(1, medium="CPU", with_tokens=False)
    )
    assert ledger.n_pending == 2
    taken(atlas, remove(1, medium="CPU"), store(0, 1))
    assert match(atlas).tier_blocks == {"gpu": 2, "cpu": 1}


@pytest.mark.parametrize("chunk", [2, None], ids=["configured", "learned"])
def test_chunk_tail_stands_for_its_whole_chunk(chunk: int | None) -> None:
    atlas = make_atlas(chunk=chunk)
    tails = [store(n, medium="CPU", with_tokens=False) for n in (3, 1, 5)]
    taken(atlas, store(0, 1, 2, 3, 4, 5), *tails, remove(0, 1, 2, 3, 4, 5))
    assert match(atlas).tier_blocks == {"gpu": 0, "cpu": 6}
    assert atlas.occupancy("e")[1].chunk_blocks == 2
    taken(atlas, remove(3, medium="CPU"))
    assert (match(atlas).tier_blocks["cpu"], match(atlas).usable_blocks) == (2, 2)


def test_chunk_size_learned_too_large_is_corrected_with_what_was_stored() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, 2, 3), store(3, medium="CPU", with_tokens=False), remove(0, 1, 2, 3))
    assert match(atlas).tier_blocks["cpu"] == 4
    taken(atlas, store(0, 1), store(1, medium="CPU", with_tokens=False), remove(0, 1))
    assert (atlas.occupancy("e")[1].residencies, match(atlas).tier_blocks["cpu"]) == (4, 4)
    taken(atlas, remove(1, medium="CPU"), remove(3, medium="CPU"))
    assert atlas.occupancy("e")[1].residencies == 0


def test_match_follows_a_chunk_size_that_is_corrected() -> None:
    atlas = make_atlas()
    blocks = range(8)
    taken(atlas, store(*blocks), store(7, medium="CPU", with_tokens=False), remove(*blocks))
    assert match(atlas).usable_blocks == 8
    taken(atlas, store(*blocks), store(3, medium="CPU", with_tokens=False), remove(*blocks))
    assert match(atlas).usable_blocks == 8
    taken(atlas, remove(7, medium="CPU"))
    assert match(atlas).usable_blocks == 4


def test_chunk_size_is_taken_from_all_tails_of_an_event_before_any_is_stored() -> None:
    atlas = make_atlas()
    tails = BlockStored(hashes(3, 1, 5), None, array("I"), 0, CPU)
    ledger = taken(atlas, store(0, 1, 2, 3, 4, 5), tails)
    assert (atlas.occupancy("e")[1].residencies, ledger.counters.unknown_removals) == (6, 0)
    taken(atlas, BlockRemoved(hashes(1, 3, 5), CPU))
    assert (atlas.occupancy("e")[1].residencies, ledger.counters.unknown_removals) == (0, 0)


def test_salted_cpu_store_resolves_through_the_hash_and_never_by_its_tokens() -> None:
    atlas = make_atlas()
    ledger = taken(atlas, store(0, extras=[None], base=500), store(0, 1, medium="CPU"))
    assert (ledger.n_pending, match(atlas).tier_blocks["cpu"]) == (2, 0)
    taken(atlas, store(0, 1, extras=[["salt"], None]))
    assert match(atlas).tier_blocks["cpu"] == 0
    assert match(atlas, salt="salt").tier_blocks == {"gpu": 2, "cpu": 2}


def test_cpu_store_with_tokens_is_read_where_the_engine_never_tells_extra_keys() -> None:
    atlas = make_atlas()
    taken(atlas, store(0), store(0, 1, medium="CPU"))
    assert match(atlas).tier_blocks == {"gpu": 1, "cpu": 2}


def test_adapter_named_in_extra_keys_is_no_multimodal_item() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, lora="ada", extras=[["ada"], ["ada"]]))
    assert match(atlas, lora="ada").tier_blocks["gpu"] == 2
    assert match(atlas).tier_blocks["gpu"] == 0


def test_adapter_and_salt_together() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, lora="ada", extras=[["ada", "s"], ["ada"]]))
    assert match(atlas, lora="ada", salt="s").tier_blocks["gpu"] == 2
    assert match(atlas, lora="ada").tier_blocks["gpu"] == 0


def test_multimodal_block_ends_the_match_of_a_text_prompt() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, 2, extras=[None, [MultimodalKey("image", 0)], None]))
    assert match(atlas).tier_blocks["gpu"] == 1


def test_block_stored_twice_needs_two_removals() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1), store(0, 1), remove(0, 1))
    assert match(atlas).tier_blocks["gpu"] == 2
    taken(atlas, remove(0, 1))
    assert match(atlas).tier_blocks["gpu"] == 0


def test_reannouncement_without_a_copy_does_not_pin_a_block_for_ever() -> None:
    atlas = make_atlas(capacity=3)
    taken(atlas, store(0, 1), store(0, 1), store(2), remove(0, 1))
    assert match(atlas).tier_blocks["gpu"] == 0


def test_clear_empties_the_gpu_and_leaves_cpu_and_the_meaning_of_hashes() -> None:
    atlas = make_atlas()
    cpu = [store(0, medium="CPU", with_tokens=False), store(1, medium="CPU", with_tokens=False)]
    taken(atlas, store(0, 1), cpu[0], AllBlocksCleared())
    assert match(atlas).tier_blocks == {"gpu": 0, "cpu": 1}
    taken(atlas, cpu[1])
    assert match(atlas).tier_blocks == {"gpu": 0, "cpu": 2}


def test_sliding_window_group_does_not_make_a_prefix_and_bounds_it() -> None:
    atlas = make_atlas()
    full = store(0, 1, 2, 3, group=1, kind="full_attention")
    sliding = BlockStored(hashes(2, 3), None, tokens(4), BLOCK, group=0, kind="sliding_window", window=8)
    taken(atlas, sliding, full)
    assert (match(atlas).tier_blocks["gpu"], match(atlas).usable_blocks) == (4, 4)
    taken(atlas, remove(3, group=0))
    assert (match(atlas).tier_blocks["gpu"], match(atlas).usable_blocks) == (4, 0)


def test_masked_store_without_hashes_is_harmless() -> None:
    atlas = make_atlas()
    empty = BlockStored((), hashes(0)[0], tokens(1), BLOCK, group=0, kind="sliding_window", window=8)
    ledger = taken(atlas, store(0, group=1, kind="full_attention"), empty)
    assert (ledger.n_pending, match(atlas).tier_blocks["gpu"]) == (0, 1)


@pytest.mark.parametrize("kind", ["encoder_only_attention", "cross_attention", "unknown", "made_up"])
def test_groups_that_never_make_a_prefix_are_counted_and_ignored(kind: str) -> None:
    atlas = make_atlas()
    ledger = taken(atlas, store(0, group=1, kind=kind), store(0))
    assert (ledger.counters.ignored_groups, match(atlas).tier_blocks["gpu"]) == (1, 1)


def test_group_is_ignored_and_counted_when_publisher_has_named_more_than_any_engine_has() -> None:
    atlas = make_atlas()
    ledger = taken(atlas, *(store(0, group=group) for group in range(MAX_GROUPS + 3)))
    assert (ledger.counters.ignored_groups, ledger.residencies(TierId(0))) == (3, MAX_GROUPS)
    taken(atlas, remove(0, group=0))
    assert ledger.residencies(TierId(0)) == MAX_GROUPS - 1


def test_store_of_another_block_size_is_counted_and_not_mixed_in() -> None:
    atlas = make_atlas()
    odd = BlockStored(hashes(7), None, array("I", range(8)), 8)
    ledger = taken(atlas, store(0), odd)
    assert (ledger.counters.block_size_mismatches, ledger.block_size) == (1, BLOCK)


def test_unknown_medium_becomes_a_tier_of_its_own_without_credit() -> None:
    atlas = make_atlas()
    taken(atlas, store(0), store(0, medium="MOON"))
    assert [(row.tier, row.residencies) for row in atlas.occupancy("e")] == [
        ("gpu", 1),
        ("cpu", 0),
        ("moon", 1),
    ]
    assert match(atlas).tier_blocks == {"gpu": 1, "cpu": 0}


def test_occupancy_names_its_tier_when_an_endpoint_holds_nothing_in_an_unknown_one_before_it() -> None:
    atlas = make_atlas()
    atlas.add("other")
    atlas.apply("other", 0, [store(0), store(0, medium="MOON")])
    taken(atlas, store(0), store(0, medium="MARS"))

    rows = atlas.occupancy("e")

    assert [(row.tier, row.residencies) for row in rows] == [("gpu", 1), ("cpu", 0), ("mars", 1)]
    assert [atlas.tiers.specs[row.tier_id].name for row in rows] == ["gpu", "cpu", "mars"]


def test_unknown_medium_with_the_name_of_a_configured_tier_is_told_apart() -> None:
    atlas = Atlas(tiers=TierTable([TierSpec("gpu", ("CUDA",))]), seed=0, core=REFERENCE)
    atlas.add("e")
    taken(atlas, BlockStored(hashes(0), None, tokens(1), BLOCK, MediumName("CUDA")), store(0, medium="GPU"))
    assert [row.tier for row in atlas.occupancy("e")] == ["gpu", "unknown-gpu"]


def test_chunks_of_a_tier_that_holds_nothing_do_not_bind_the_others() -> None:
    tiers = TierTable(
        [TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",)), TierSpec("disk", ("FS",), None, 16)]
    )
    atlas = Atlas(tiers=tiers, seed=0, core=REFERENCE)
    atlas.add("e")
    taken(
        atlas,
        store(0, 1),
        store(0, medium="CPU", with_tokens=False),
        store(1, medium="CPU", with_tokens=False),
        remove(0, 1),
    )
    assert match(atlas).usable_blocks == 2


def test_reset_leaves_nothing_and_starts_clean() -> None:
    atlas = make_atlas()
    ledger = taken(atlas, store(0, 1), store(5), store(9, medium="CPU", with_tokens=False))
    atlas.reset("e", 0)
    assert (ledger.block_size, ledger.n_pending, ledger.hashes.n_parked, len(ledger.hashes)) == (
        None,
        0,
        0,
        0,
    )
    assert atlas.match(Prefix(tokens(4))) == {}
    taken(atlas, BlockStored(hashes(0), None, array("I", range(8)), 8))
    assert ledger.block_size == 8


def test_block_size_that_nobody_uses_any_more_leaves_no_index_behind() -> None:
    atlas = make_atlas()
    for block_size in (2, 4, 8):
        taken(atlas, BlockStored(hashes(0), None, array("I", range(block_size)), block_size))
        assert atlas.block_sizes == (block_size,)
        atlas.reset("e", 0)
    assert atlas.block_sizes == ()


def test_capacity_follows_what_is_set_later() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, 2, 3))
    atlas.set_capacity("e", TierId(0), 2)
    assert match(atlas).tier_blocks["gpu"] == 2


def test_match_follows_a_group_that_turns_out_to_be_another_kind() -> None:
    atlas = make_atlas()
    taken(atlas, store(0, 1, 2, 3), store(0, 1, 2, 3, group=1))
    assert match(atlas).tier_blocks["gpu"] == 4
    taken(atlas, store(3, group=1, kind="sliding_window", window=5), remove(0, group=1))
    assert (match(atlas).tier_blocks["gpu"], match(atlas).usable_blocks) == (4, 4)


def test_hashes_are_forgotten_when_no_tier_holds_them_and_many_came_since() -> None:
    atlas = make_atlas()
    ledger = atlas.ledger("e", 0)
    for number in range(40_000):
        prompt = BlockStored((EngineHash(number + 1),), None, array("I", [number] * BLOCK), BLOCK)
        atlas.apply("e", 0, [prompt, BlockRemoved(prompt.hashes)])
    assert len(ledger.hashes) < 25_000


def test_endless_orphans_and_unexplained_hashes_stay_bounded() -> None:
    atlas = make_atlas()
    ledger = taken(atlas, store(0))
    for number in range(1, 70_000):
        orphan = BlockStored((EngineHash(10**6 + number),), EngineHash(10**9 + number), tokens(1), BLOCK)
        atlas.apply("e", 0, [orphan])
    assert ledger.hashes.n_parked <= 65_536
    assert ledger.n_pending <= 65_536
    assert ledger.hashes.n_dropped > 0
    assert ledger.counters.pending_dropped > 0
