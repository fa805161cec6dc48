"""Slower tiers that are no server's own by their events, and several owners of one medium."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.events.model import (
    DEFAULT_MEDIUM,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    MediumName,
    broader_media,
    is_remote,
    qualified_medium,
)
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE, IndexCore, index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.snapshot import saved_tiers
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable

BLOCK = 16
STORAGE, REMOTE = MediumName("STORAGE"), MediumName("STORAGE/REMOTE")
FS, OBJ = MediumName("STORAGE/FS"), MediumName("STORAGE/OBJ")
TIERS = (TierSpec("gpu", ("GPU",)), TierSpec("disk", ("STORAGE",)))
DISK = TierId(1)
TOKENS = array("I", range(3, 3 + 40 * BLOCK))


@pytest.fixture(params=[REFERENCE, index_core()], ids=["reference", "native"])
def core(request: pytest.FixtureRequest) -> IndexCore:
    assert isinstance(request.param, IndexCore)
    return request.param


def make_atlas(core: IndexCore, *endpoints: str, tiers: tuple[TierSpec, ...] = TIERS) -> Atlas:
    atlas = Atlas(tiers=TierTable(tiers), seed=0, core=core)
    for endpoint in endpoints:
        atlas.add(endpoint)
    return atlas


def stored(n_blocks: int, medium: MediumName = DEFAULT_MEDIUM) -> BlockStored:
    hashes = tuple(EngineHash(100 + number) for number in range(n_blocks))
    return BlockStored(hashes, None, TOKENS[: n_blocks * BLOCK], BLOCK, medium)


def removed(number: int, medium: MediumName) -> BlockRemoved:
    return BlockRemoved((EngineHash(100 + number),), medium)


def held(atlas: Atlas, endpoint: str, tier: str = "disk") -> int:
    found = atlas.match(Prefix(TOKENS)).get(endpoint)
    return found.tier_blocks[tier] if found is not None else 0


def test_qualified_medium_names_locality_and_owner() -> None:
    both = qualified_medium(STORAGE, is_remote=True, owner="kvcr")
    assert both == "STORAGE/REMOTE/KVCR"
    assert broader_media(both) == ["STORAGE/KVCR", "STORAGE/REMOTE", "STORAGE"]
    assert (broader_media(REMOTE), broader_media(STORAGE), broader_media(MediumName("/X"))) == (
        [STORAGE],
        [],
        [],
    )
    assert (is_remote(both), is_remote(REMOTE), is_remote(FS)) == (True, True, False)


def test_tier_is_shared_from_the_first_event_that_says_so(core: IndexCore) -> None:
    atlas = make_atlas(core, "a", "b")
    atlas.apply("a", 0, [stored(4)])
    atlas.apply("b", 0, [stored(2)])
    before = saved_tiers(atlas.tiers)
    atlas.apply("a", 0, [stored(4, REMOTE)])

    assert (held(atlas, "a"), held(atlas, "b")) == (4, 4)
    assert atlas.tiers.specs[DISK].shared
    assert saved_tiers(atlas.tiers) == before, "a snapshot compares what is configured"

    atlas.apply("b", 0, [stored(6), stored(6, REMOTE)])
    atlas.apply("a", 0, [AllBlocksCleared()])
    assert held(atlas, "a") == 6
    atlas.apply("b", 0, [removed(5, REMOTE)])
    assert held(atlas, "a") == 5


def test_blocks_of_one_server_stay_its_own_when_another_says_that_the_tier_is_remote(core: IndexCore) -> None:
    atlas = make_atlas(core, "a", "b")
    atlas.apply("a", 0, [stored(4), stored(4, STORAGE)])
    atlas.apply("b", 0, [stored(6), stored(6, REMOTE)])

    assert (held(atlas, "a"), held(atlas, "b")) == (4, 6)
    assert atlas.mixed_tiers == {DISK}
    assert not atlas.tiers.specs[DISK].shared


def test_local_and_remote_storage_can_have_tiers_of_their_own(core: IndexCore) -> None:
    pool = TierSpec("pool", ("STORAGE/REMOTE",), shared=True)
    atlas = make_atlas(core, "a", "b", tiers=(*TIERS, pool))
    atlas.apply("a", 0, [stored(4), stored(4, STORAGE)])
    atlas.apply("b", 0, [stored(6), stored(6, REMOTE)])

    assert (held(atlas, "a"), held(atlas, "b")) == (4, 0)
    assert (held(atlas, "a", "pool"), held(atlas, "b", "pool")) == (6, 6)


def test_owners_of_one_medium_can_have_tiers_of_their_own(core: IndexCore) -> None:
    tiers = (TIERS[0], TierSpec("fs", ("STORAGE/FS",)), TierSpec("obj", ("STORAGE/OBJ",)))
    atlas = make_atlas(core, "a", tiers=tiers)
    atlas.apply("a", 0, [stored(4), stored(4, FS), stored(2, OBJ), stored(4, FS)])
    atlas.apply("a", 0, [removed(0, OBJ)])

    assert (held(atlas, "a", "fs"), held(atlas, "a", "obj")) == (4, 0)


def test_owners_share_the_tier_of_their_medium_when_none_is_configured(core: IndexCore) -> None:
    atlas = make_atlas(core, "a")
    atlas.apply("a", 0, [stored(4), stored(4, FS), stored(4, OBJ), removed(3, FS)])

    assert held(atlas, "a") == 4
    assert atlas.tiers.unknown_media == ()


def test_shared_blocks_of_a_snapshot_are_there_again(core: IndexCore) -> None:
    atlas = make_atlas(core, "a")
    atlas.apply("a", 0, [stored(4), stored(4, REMOTE)])
    again = make_atlas(core, "a")
    again.load_shared("", atlas.dump_shared(""))
    again.apply("a", 0, [stored(1)])

    assert held(again, "a") == 4


def test_unknown_medium_with_locality_has_one_tier_and_no_credit() -> None:
    table = TierTable(TIERS)
    tape = table.of(MediumName("TAPE/REMOTE"))
    assert (table.of(MediumName("TAPE")), table.unknown_media) == (tape, ("TAPE",))
    table.note(MediumName("TAPE/REMOTE"), tape)
    assert not table.specs[tape].shared


def test_instance_of_another_tenant_shares_no_tier(core: IndexCore) -> None:
    atlas = make_atlas(core, "a")
    atlas.add("other", space="tenant/")
    atlas.apply("other", 0, [stored(4), stored(4, REMOTE)])

    assert not atlas.tiers.specs[DISK].shared
    assert (held(atlas, "other"), held(atlas, "a")) == (4, 0)
