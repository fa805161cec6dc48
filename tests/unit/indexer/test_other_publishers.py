"""Blocks told by other publishers than engines: standard hashes, stores filled by engines, LMCache's chunks."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kvatlas.events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    HashSpace,
    MediumName,
)
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE, IndexCore, index_core
from kvatlas.indexer.keys import prefix_keys
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.recording import read_lines

GOLDEN = Path(__file__).parents[2] / "golden" / "other-publishers"
BLOCK = 16
GPU, CPU, POOL = MediumName("GPU"), MediumName("CPU"), MediumName("MOONCAKE_CPU")
TIERS = (
    TierSpec("gpu", ("GPU",)),
    TierSpec("cpu", ("CPU",)),
    TierSpec("pool", ("MOONCAKE_CPU",), shared=True),
)
TOKENS = array("I", range(3, 3 + 40 * BLOCK))


@pytest.fixture(params=[REFERENCE, index_core()], ids=["reference", "native"])
def core(request: pytest.FixtureRequest) -> IndexCore:
    assert isinstance(request.param, IndexCore)
    return request.param


def make_atlas(core: IndexCore, *endpoints: str, seed: int = 0) -> Atlas:
    atlas = Atlas(tiers=TierTable(TIERS), seed=seed, core=core)
    for endpoint in endpoints or ("e",):
        atlas.add(endpoint)
    return atlas


def on_gpu(n_blocks: int, *, first_hash: int = 100) -> BlockStored:
    hashes = tuple(EngineHash(first_hash + number) for number in range(n_blocks))
    return BlockStored(hashes, None, TOKENS[: n_blocks * BLOCK], BLOCK)


def by_hash(*hashes: int, space: HashSpace, medium: MediumName = POOL, block_size: int = 0) -> BlockStored:
    return BlockStored(
        tuple(map(EngineHash, hashes)), None, array("I"), block_size, medium, space=space, tenant="default"
    )


def gone(*hashes: int, space: HashSpace, medium: MediumName = POOL) -> BlockRemoved:
    return BlockRemoved(tuple(map(EngineHash, hashes)), medium, 0, space, "default")


def held(atlas: Atlas, tier: str, endpoint: str = "e") -> int:
    found = atlas.match(Prefix(TOKENS)).get(endpoint)
    return found.tier_blocks[tier] if found is not None else 0


# -- standard hashes --------------------------------------------------------------------------------------------------

KEYS = prefix_keys(TOKENS, BLOCK, seed=0)


def test_standard_hashes_are_block_keys(core: IndexCore) -> None:
    atlas = make_atlas(core)
    store = by_hash(*KEYS[:4], space=HashSpace.STANDARD, medium=CPU, block_size=BLOCK)
    atlas.apply("e", 0, [store, store])
    assert held(atlas, "cpu") == 4
    atlas.apply("e", 0, [gone(*KEYS[2:4], space=HashSpace.STANDARD, medium=CPU)])
    assert held(atlas, "cpu") == 2  # a repeated announcement is no second copy
    atlas.apply("e", 0, [AllBlocksCleared(everywhere=True, tenant="default")])
    assert held(atlas, "cpu") == 0


@pytest.mark.parametrize(
    ("store", "seed"),
    [
        pytest.param(by_hash(*KEYS[:1], space=HashSpace.STANDARD, medium=CPU), 0, id="no_block_size"),
        pytest.param(
            replace(by_hash(*KEYS[:1], space=HashSpace.STANDARD, block_size=BLOCK), lora_name="a"), 0, id="adapter"
        ),
        pytest.param(by_hash(*KEYS[:1], space=HashSpace.STANDARD, block_size=BLOCK), 7, id="other_seed"),
    ],
)  # fmt: skip
def test_hashes_that_are_no_keys_of_ours_are_counted(core: IndexCore, store: BlockStored, seed: int) -> None:
    atlas = make_atlas(core, seed=seed)
    atlas.apply("e", 0, [store])
    assert (atlas.stats().residencies, atlas.ledger("e", 0).counters.unkeyed) == (0, 1)


def test_events_of_other_tenants_are_ignored(core: IndexCore) -> None:
    atlas = make_atlas(core)
    ledger = atlas.ledger("e", 0)
    ledger.tenant = "red"
    atlas.apply("e", 0, [by_hash(*KEYS[:1], space=HashSpace.STANDARD, medium=CPU, block_size=BLOCK)])
    assert (held(atlas, "cpu"), ledger.counters.other_tenants) == (0, 1)


def test_only_the_named_tier_is_cleared(core: IndexCore) -> None:
    atlas = make_atlas(core)
    atlas.apply("e", 0, [on_gpu(2), replace(on_gpu(2), medium=CPU), AllBlocksCleared(medium=CPU)])
    assert (held(atlas, "gpu"), held(atlas, "cpu")) == (2, 0)


@pytest.mark.parametrize("own", [None, "w8a8"], ids=["no_salt_of_its_own", "own_salt"])
def test_salt_of_an_envelope_is_part_of_the_key_unless_it_is_the_publishers_own(
    core: IndexCore, own: str | None
) -> None:
    atlas = make_atlas(core)
    atlas.ledger("e", 0).own_salt = own
    atlas.apply("e", 0, [replace(on_gpu(2), additional_salt="w8a8")])
    salted = atlas.match(Prefix(TOKENS, salt="w8a8"))["e"].tier_blocks["gpu"]
    assert (held(atlas, "gpu"), salted) == ((0, 2) if own is None else (2, 0))


# -- stores that engines fill -----------------------------------------------------------------------------------------


def test_blocks_of_a_store_are_found_by_the_hashes_of_engines(core: IndexCore) -> None:
    atlas = make_atlas(core, "e", "other", "pool")
    atlas.apply("e", 0, [on_gpu(3)])
    atlas.apply("other", 0, [on_gpu(1, first_hash=500)])
    atlas.apply("pool", 0, [by_hash(number, space=HashSpace.FLEET) for number in (100, 101, 102)])
    assert held(atlas, "pool", "other") == held(atlas, "pool") == 3
    atlas.apply("pool", 0, [gone(101, space=HashSpace.FLEET)])
    assert held(atlas, "pool", "other") == 1


@pytest.mark.parametrize("medium", [None, CPU], ids=["all", "its_memory"])
def test_a_store_that_is_cleared_empties_the_tier_it_shares(
    core: IndexCore, medium: MediumName | None
) -> None:
    atlas = make_atlas(core, "e", "pool")
    atlas.apply("e", 0, [on_gpu(2)])
    blocks = [by_hash(number, space=HashSpace.FLEET) for number in (100, 101)]
    atlas.apply("pool", 0, blocks)
    cleared = AllBlocksCleared(medium=medium, everywhere=True, tenant="default")
    atlas.apply("e", 0, [cleared])
    assert held(atlas, "pool") == 2  # an engine's word is about its own blocks
    atlas.apply("e", 0, [on_gpu(2)])
    atlas.ledger("pool", 0).is_store = True
    atlas.apply("pool", 0, [cleared])
    assert (held(atlas, "gpu"), held(atlas, "pool")) == (2, 0)
    atlas.apply("pool", 0, blocks)
    assert held(atlas, "pool") == 2


def test_blocks_of_a_store_wait_for_an_engine_to_tell_them(core: IndexCore) -> None:
    atlas = make_atlas(core, "e", "pool")
    atlas.apply("pool", 0, [by_hash(100, space=HashSpace.FLEET)])
    atlas.apply("e", 0, [on_gpu(1)])
    atlas.apply("pool", 0, [by_hash(space=HashSpace.FLEET)])
    assert held(atlas, "pool") == 1


def test_a_removed_block_waits_no_longer(core: IndexCore) -> None:
    atlas = make_atlas(core, "e", "pool")
    atlas.apply("pool", 0, [by_hash(100, space=HashSpace.FLEET), gone(100, space=HashSpace.FLEET)])
    atlas.apply("e", 0, [on_gpu(1)])
    atlas.apply("pool", 0, [by_hash(space=HashSpace.FLEET)])
    assert held(atlas, "pool") == 0


def test_other_spaces_do_not_tell_what_a_hash_is(core: IndexCore) -> None:
    atlas = make_atlas(core, "pool")
    atlas.add("red", space="red/model")
    atlas.apply("red", 0, [on_gpu(1)])
    atlas.apply("pool", 0, [by_hash(100, space=HashSpace.FLEET)])
    assert held(atlas, "pool", "red") == 0


# -- TensorRT-LLM -----------------------------------------------------------------------------------------------------


def of_group(n_blocks: int, group: int, window: int) -> BlockStored:
    return replace(on_gpu(n_blocks), group=group, window=window)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_largest_window_gives_the_prefix_and_the_others_limit_it(
    core: IndexCore, order: tuple[int, int]
) -> None:
    """Groups tell their windows without their kinds; blocks that have left a window are removed from its group."""
    atlas, windows = make_atlas(core), {0: 32_768, 1: 2 * BLOCK}
    for group in order:
        atlas.apply("e", 0, [of_group(8, group, windows[group])])
    atlas.apply("e", 0, [BlockRemoved(tuple(map(EngineHash, range(100, 106))), GPU, group=1)])
    assert usable(atlas) == 8 * BLOCK
    atlas.apply("e", 0, [BlockRemoved((EngineHash(107),), GPU, group=1)])
    assert usable(atlas) == 0
    atlas.apply("e", 0, [of_group(4, 1, windows[1])])
    assert usable(atlas) == 4 * BLOCK


def usable(atlas: Atlas) -> int:
    return atlas.match(Prefix(TOKENS))["e"].usable_tokens


# -- LMCache ----------------------------------------------------------------------------------------------------------


class Sample(msgspec.Struct):
    engine: str
    payload: bytes | None = None


PAYLOADS = [each for each in read_lines(GOLDEN / "lmcache-0.5.6.jsonl", Sample) if each.payload is not None]


def lmcache_events(core: IndexCore) -> list[Event]:
    (sample,) = PAYLOADS
    assert sample.payload is not None
    return list(core.decode_batch(sample.payload))


def test_recorded_chunks_of_lmcache_are_held_in_blocks_of_the_engine(core: IndexCore) -> None:
    *stores, removal = lmcache_events(core)
    atlas = make_atlas(core)
    atlas.apply("e", 0, [on_gpu(1), *stores])
    assert held(atlas, "cpu") == 2 * 256 // BLOCK
    atlas.apply("e", 0, [removal])
    assert held(atlas, "cpu") == 0
    assert atlas.ledger("e", 0).residencies(atlas.tiers.of(CPU)) == 256 // BLOCK


def test_lmcache_withdraws_everything_and_announces_it_again(core: IndexCore) -> None:
    *stores, _ = lmcache_events(core)
    hashes = tuple(each for store in stores if isinstance(store, BlockStored) for each in store.hashes)
    atlas = make_atlas(core)
    for _ in range(2):
        atlas.apply("e", 0, [on_gpu(1), *stores, *stores])
        assert held(atlas, "cpu") == 32
        atlas.apply("e", 0, [BlockRemoved(hashes, CPU)])
        assert (held(atlas, "gpu"), held(atlas, "cpu")) == (1, 0)


def test_chunk_hashes_may_equal_hashes_of_the_engine(core: IndexCore) -> None:
    *stores, _ = lmcache_events(core)
    (first, *_) = stores
    assert isinstance(first, BlockStored)
    (hash_of_both,) = first.hashes
    own = BlockStored((hash_of_both,), None, array("I", [9] * BLOCK), BLOCK)
    atlas = make_atlas(core)
    atlas.apply("e", 0, [own, *stores, BlockRemoved((hash_of_both,), CPU)])
    assert atlas.ledger("e", 0).residencies(atlas.tiers.of(CPU)) == 256 // BLOCK  # the second chunk's
    assert atlas.ledger("e", 0).residencies(atlas.tiers.of(GPU)) == 1


def test_a_chunk_in_two_tiers_leaves_each_by_itself(core: IndexCore) -> None:
    *stores, removal = lmcache_events(core)
    atlas = make_atlas(core)
    again = [replace(each, medium=POOL) for each in stores if isinstance(each, BlockStored)]
    assert isinstance(removal, BlockRemoved)
    atlas.apply("e", 0, [on_gpu(1), *stores, *again, removal])
    assert (held(atlas, "cpu"), held(atlas, "pool")) == (0, 32)
    atlas.apply("e", 0, [replace(removal, medium=POOL)])
    assert held(atlas, "pool") == 0
