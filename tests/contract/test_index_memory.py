"""The contract of an index's statistics and of `sweep`, which frees memory in steps."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.index import MAX_SURPLUS_EVICTED, BlockIndex
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.cores import CORES


def keys(*values: int) -> array[int]:
    return array("Q", values)


@pytest.fixture(params=CORES.values(), ids=list(CORES))
def index(request: pytest.FixtureRequest) -> BlockIndex:
    core: IndexCore = request.param
    return core.make_index()


def test_stats_count_keys_once_and_residencies_by_holder(index: BlockIndex) -> None:
    a, b = index.open(), index.open()
    index.store(a, keys(1, 2, 2))
    index.store(b, keys(2, 3, 4))
    index.remove(b, keys(4))
    stats = index.stats()
    assert (stats.keys, stats.residencies, stats.unswept) == (3, 4, 0)
    assert stats.size_bytes > 0


def test_stats_grow_with_what_is_held(index: BlockIndex) -> None:
    before, holder = index.stats().size_bytes, index.open()
    index.store(holder, array("Q", range(10_000)))
    assert index.stats().size_bytes > before + 8 * 10_000


@pytest.mark.parametrize("forget", ["close", "clear"])
def test_sweep_leaves_nothing_of_what_is_forgotten(index: BlockIndex, forget: str) -> None:
    stays, goes = index.open(), index.open()
    index.store(stays, keys(1, 2))
    index.store(goes, array("Q", range(20_000)))  # more than the native core drops at once
    getattr(index, forget)(goes)
    n_left = [index.sweep(5000) for _ in range(6)]
    assert n_left == sorted(n_left, reverse=True)
    assert n_left[-1] == 0
    assert index.stats()[:3] == (2, 2, 0)
    assert list(index.items(stays)) == [(2, 1), (1, 1)]


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_atlas_sweeps_and_sums_the_indexes_of_all_block_sizes(core: IndexCore) -> None:
    atlas = Atlas(tiers=TierTable([TierSpec("gpu", ("GPU",))]), seed=0, core=core)
    assert atlas.stats() == (0, 0, 0, 0)
    for block_size in (2, 4):
        for name, n_blocks in (("stays", 3), ("goes", 20_000)):
            hashes = tuple(EngineHash(block + 1) for block in range(n_blocks))
            tokens = array("I", range(n_blocks * block_size))
            atlas.add(f"{name}-{block_size}")
            atlas.apply(f"{name}-{block_size}", 0, [BlockStored(hashes, None, tokens, block_size)])
    assert atlas.stats()[:3] == (40_000, 40_006, 0)
    for block_size in (2, 4):
        atlas.remove(f"goes-{block_size}")
    n_left = [atlas.sweep(n_keys=8000) for _ in range(4)]
    assert (sorted(n_left, reverse=True), n_left[-1]) == (n_left, 0)
    assert atlas.stats()[:3] == (6, 6, 0)


def test_much_lower_capacity_is_reached_in_steps_oldest_first(index: BlockIndex) -> None:
    holder = index.open()
    n_blocks = 2 * MAX_SURPLUS_EVICTED + 100
    index.store(holder, array("Q", range(n_blocks, 0, -1)))
    assert index.set_capacity(holder, 10) == MAX_SURPLUS_EVICTED
    index.touch(holder, keys(n_blocks // 2 + 50))
    assert index.store(holder, keys(0)) == MAX_SURPLUS_EVICTED + 1
    assert index.keep(holder, keys(n_blocks)) == n_blocks - 2 * MAX_SURPLUS_EVICTED - 10
    assert [key for key, _ in index.items(holder)][-3:] == [n_blocks // 2 + 50, 0, n_blocks]
    assert index.size(holder) == 10


def test_surplus_copies_leave_in_steps_too(index: BlockIndex) -> None:
    holder = index.open()
    for _ in range(3):
        index.store(holder, array("Q", range(MAX_SURPLUS_EVICTED)))
    assert [index.set_capacity(holder, 5) for _ in range(3)] == [0, 0, MAX_SURPLUS_EVICTED - 5]
    assert all(copies == 1 for _, copies in index.items(holder))
