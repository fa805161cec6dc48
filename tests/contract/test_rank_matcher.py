"""The contract of `BlockIndex.matcher`: both cores agree with a naive check of each block."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.figures import (
    N_BESIDE_TIERS,
    N_BLOCKS,
    USABLE,
    predict_columns,
    predict_in_python,
)
from kvatlas.indexer.index import BlockIndex, RankMatcher
from kvatlas.indexer.match import RankLayout, RankMatch, Window, measure
from kvatlas.indexer.match_columns import MatchedRank
from support.cores import CORES
from support.oracle import naive_match

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

BOTH = pytest.mark.parametrize("core", CORES.values(), ids=CORES)


def prompt_of(n_blocks: int) -> array[int]:
    return array("Q", range(n_blocks))


def index_of(make: Callable[[], BlockIndex], blocks: list[int]) -> BlockIndex:
    """Fill an index: the holders of the bit mask `blocks[i]` hold block i, with key i."""
    index = make()
    for _ in range(N_HOLDERS):
        holder = index.open()
        index.store(holder, array("Q", [key for key, mask in enumerate(blocks) if mask >> holder & 1]))
    return index


def matched(
    index: BlockIndex, layouts: list[RankLayout], prompt: array[int], *, n_tokens: int, block_size: int
) -> dict[int, RankMatch]:
    """Return the match of each rank that holds the first block, each in a row of its own."""
    ranks = [MatchedRank(row, 0, layout) for row, layout in enumerate(layouts)]
    return read(index.matcher(ranks, block_size=block_size), layouts, prompt, n_tokens=n_tokens)


def read(
    matcher: RankMatcher, layouts: list[RankLayout], prompt: array[int], *, n_tokens: int
) -> dict[int, RankMatch]:
    n_most = max((len(layout.tiers) for layout in layouts), default=1)
    figures = np.zeros((2 * n_most + N_BESIDE_TIERS, len(layouts)), np.int32)
    sparse = matcher.fill(prompt, figures, n_tokens=n_tokens)
    assert sparse is None or not sparse.shared
    assert (figures[2 * n_most + N_BLOCKS] == len(prompt)).all()
    interleaved = {row: runs for row, _, runs in (sparse.interleaved if sparse is not None else ())}
    found: dict[int, RankMatch] = {}
    for row, layout in enumerate(layouts):
        n = len(layout.tiers)
        column = figures[:, row].tolist()
        match = RankMatch(
            tuple(column[:n]),
            tuple(column[n_most : n_most + n]),
            column[2 * n_most + USABLE],
            interleaved.get(row, ()),
        )
        if any(match.tier_blocks):
            found[row] = match
    return found


@given(
    blocks=BLOCKS,
    layouts=st.lists(LAYOUTS, max_size=4),
    n_tokens=st.integers(0, 200),
    block_size=st.integers(1, 5),
)
def test_every_core_matches_as_a_naive_look_at_each_block(
    blocks: list[int], layouts: list[RankLayout], n_tokens: int, block_size: int
) -> None:
    prompt = prompt_of(len(blocks) + 1)
    wanted = [naive_match(blocks, each, n_tokens=n_tokens, block_size=block_size) for each in layouts]
    for core in CORES.values():
        index = index_of(core.make_index, blocks)
        presence = index.runs(prompt)
        measured = [measure(presence, each, n_tokens=n_tokens, block_size=block_size) for each in layouts]
        assert measured == wanted
        matches = matched(index, layouts, prompt, n_tokens=n_tokens, block_size=block_size)
        assert list(matches.items()) == [(rank, match) for rank, match in enumerate(wanted) if match.runs]
        assert all(match.usable_blocks == 0 for rank, match in enumerate(wanted) if rank not in matches)


@BOTH
def test_holder_that_was_closed_matches_nothing(core: IndexCore) -> None:
    index, prompt = core.make_index(), prompt_of(20_000)  # more keys than the native core drops at once
    stays, goes = index.open(), index.open()
    index.store(stays, prompt[:3])
    index.store(goes, prompt)
    layouts = [RankLayout((1 << stays,), (1,)), RankLayout((1 << goes,), (1,))]
    matcher = index.matcher([MatchedRank(row, 0, each) for row, each in enumerate(layouts)], block_size=1)
    index.close(goes)
    assert read(matcher, layouts, prompt, n_tokens=20_000) == {0: RankMatch((3,), (3,), 3)}


@BOTH
def test_matcher_may_be_used_again_after_changes(core: IndexCore) -> None:
    index, prompt = core.make_index(), prompt_of(2)
    holder = index.open()
    layout = RankLayout((1 << holder, 0), (1, 2))
    matcher = index.matcher([MatchedRank(0, 0, layout)], block_size=4)
    assert read(matcher, [layout], prompt, n_tokens=9) == {}
    index.store(holder, prompt)
    assert read(matcher, [layout], prompt, n_tokens=9) == {0: RankMatch((2, 0), (2, 0), 2)}


@BOTH
def test_many_ranks_are_told_apart_by_their_positions(core: IndexCore) -> None:
    index, prompt = core.make_index(), prompt_of(300)
    holders = [index.open() for _ in range(300)]
    for n_blocks, holder in enumerate(holders):
        index.store(holder, prompt[:n_blocks])
    layouts = [RankLayout((0, 1 << holder), (1, 1)) for holder in reversed(holders)]
    matches = matched(index, layouts, prompt, n_tokens=5000, block_size=16)
    assert {rank: match.tier_blocks for rank, match in matches.items()} == {
        rank: (0, 299 - rank) for rank in range(299)
    }


@BOTH
@pytest.mark.parametrize(
    "layout",
    [pytest.param(RankLayout((), ()), id="no_tier"), pytest.param(RankLayout((1, 2), (1, 0)), id="no_chunk")],
)
def test_impossible_layout_is_refused(core: IndexCore, layout: RankLayout) -> None:
    with pytest.raises(ValueError, match=r"at least one tier|chunk"):
        core.make_index().matcher([MatchedRank(0, 0, layout)], block_size=16)


@BOTH
@given(
    columns=st.lists(
        st.tuples(*[st.just(0) | st.integers(0, 3)] * 4, *[st.integers(0, 2**31 - 1)] * 5), max_size=8
    )
)
def test_held_columns_are_those_with_a_block_in_any_tier(
    core: IndexCore, columns: list[tuple[int, ...]]
) -> None:
    figures = np.array(columns, np.int32).reshape(-1, 9).T.copy()

    found = core.make_index().matcher([], block_size=1).held(figures)

    assert found == [
        (row, column[:2], column[2:4], *column[4:]) for row, column in enumerate(columns) if any(column[:2])
    ]


@given(
    columns=st.lists(
        st.tuples(*[st.integers(0, 9)] * 5, st.just(0), st.just(0), st.just(9), st.sampled_from([2, 4])),
        min_size=1,
        max_size=8,
    ),
    wanted=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 12)), unique_by=lambda each: each[0]),
    block_size=st.sampled_from([2, 4]),
    n_tokens=st.integers(0, 40),
)
def test_predictions_change_columns_alike_with_and_without_the_native_core(
    columns: list[tuple[int, ...]], wanted: list[tuple[int, int]], block_size: int, n_tokens: int
) -> None:
    # two tiers, two of the union, usable blocks, rank, predicted blocks, blocks of the prompt, block size
    before = np.array(columns, np.int32).T.copy()
    wanted = [each for each in wanted if each[0] < len(columns)]
    found = [before.copy(), before.copy()]

    predict_in_python(found[0], wanted, block_size, n_tokens)
    predict_columns(found[1], wanted, block_size, n_tokens)

    assert found[0].tolist() == found[1].tolist()
