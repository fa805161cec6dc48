"""`NativeIndex.match` gives for every rank what `measure` gives."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.index import PresenceRun
from kvatlas.indexer.match import RankLayout, Window, measure

if TYPE_CHECKING:
    from kvatlas.indexer.native_index import NativeIndex, compile_layouts
else:
    native = pytest.importorskip("kvatlas.indexer.native_index", reason="the native core was not built")
    NativeIndex, compile_layouts = native.NativeIndex, native.compile_layouts

N_HOLDERS = 6
MASKS = st.integers(0, 2**N_HOLDERS - 1) | st.sampled_from([1 << 200, 1 << N_HOLDERS | 1])
WINDOWS = st.builds(Window, holders=MASKS, n_blocks=st.integers(0, 5))
LAYOUTS = st.integers(1, 3).flatmap(
    lambda n_tiers: st.builds(
        RankLayout,
        tiers=st.tuples(*[MASKS] * n_tiers),
        chunks=st.tuples(*[st.integers(1, 4)] * n_tiers),
        windows=st.lists(WINDOWS, max_size=2).map(tuple),
    )
)
BLOCKS = st.lists(st.integers(0, 2**N_HOLDERS - 1) | st.just(2**N_HOLDERS - 1), max_size=40)


def index_of(blocks: list[int]) -> NativeIndex:
    """Block i, with key i, is held by the holders of the bit mask `blocks[i]`."""
    index = NativeIndex()
    for _ in range(N_HOLDERS):
        holder = index.open()
        index.store(holder, array("Q", [key for key, mask in enumerate(blocks) if mask >> holder & 1]))
    return index


@given(
    blocks=BLOCKS,
    layouts=st.lists(LAYOUTS, max_size=4),
    n_tokens=st.integers(0, 200),
    block_size=st.integers(1, 5),
)
def test_match_is_measure_of_runs(
    blocks: list[int], layouts: list[RankLayout], n_tokens: int, block_size: int
) -> None:
    index, prompt = index_of(blocks), array("Q", range(len(blocks) + 1))
    presence = index.runs(prompt)
    rows = index.match(prompt, compile_layouts(layouts), n_tokens=n_tokens, block_size=block_size)
    measured = [measure(presence, layout, n_tokens=n_tokens, block_size=block_size) for layout in layouts]
    assert [(row.rank, row.tier_blocks, row.runs, row.usable_blocks) for row in rows] == [
        (rank, each.tier_blocks, each.runs, each.usable_blocks)
        for rank, each in enumerate(measured)
        if each.runs
    ]
    assert all(each.usable_blocks == 0 and not any(each.tier_blocks) for each in measured if not each.runs)


def test_holder_that_was_closed_matches_nothing() -> None:
    index, prompt = NativeIndex(), array("Q", range(20_000))
    stays, goes = index.open(), index.open()
    index.store(stays, prompt[:3])
    index.store(goes, prompt)
    layouts = compile_layouts([RankLayout((1 << stays,), (1,)), RankLayout((1 << goes,), (1,))])
    index.close(goes)
    rows = index.match(prompt, layouts, n_tokens=20_000, block_size=1)
    assert rows == [(0, (3,), ((0, 3),), 3)]
    assert index.runs(prompt) == [PresenceRun(3, 1 << stays)]


def test_layouts_may_be_used_again_after_changes() -> None:
    index, prompt = NativeIndex(), array("Q", [1, 2])
    holder = index.open()
    layouts = compile_layouts([RankLayout((1 << holder, 0), (1, 2))])
    assert index.match(prompt, layouts, n_tokens=9, block_size=4) == []
    index.store(holder, prompt)
    assert index.match(prompt, layouts, n_tokens=9, block_size=4) == [(0, (2, 0), ((0, 2),), 2)]


def test_layout_that_measures_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one tier"):
        compile_layouts([RankLayout((), ())])
