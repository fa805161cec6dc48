"""The best rank of every endpoint, over ranks of several block sizes, on both cores."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.index import BlockIndex
from kvatlas.indexer.match import RankLayout, RankMatch, Window
from kvatlas.indexer.match_plan import MatchPlan, PlannedRank
from kvatlas.indexer.prefix import Prefix
from support.cores import CORES
from support.oracle import naive_match

TIERS = ("gpu", "cpu")
SIZES = (2, 4)
N_HOLDERS = 8
SHARED = 1  # holder 0 is a tier that several ranks share

MASKS = st.integers(0, 2**N_HOLDERS - 1) | st.just(SHARED)
LAYOUTS = st.builds(
    RankLayout,
    tiers=st.tuples(MASKS, MASKS),
    chunks=st.tuples(st.just(1), st.integers(1, 3)),
    windows=st.lists(st.builds(Window, holders=MASKS, n_blocks=st.integers(1, 3)), max_size=1).map(tuple),
)
RANKS = st.lists(
    st.builds(
        PlannedRank,
        endpoint=st.sampled_from("abc"),
        rank=st.integers(0, 3),
        block_size=st.sampled_from(SIZES),
        layout=LAYOUTS,
        lookahead=st.just(0),
    ),
    max_size=8,
    unique_by=lambda planned: (planned.endpoint, planned.rank),
)
BLOCKS = st.lists(st.integers(0, 2**N_HOLDERS - 1) | st.just(2**N_HOLDERS - 1), max_size=12)


class Best(NamedTuple):
    """The expected match of an endpoint."""

    rank: int
    block_size: int
    n_blocks: int
    held: RankMatch


def index_of(core: IndexCore, blocks: list[int]) -> BlockIndex:
    """Fill an index: the holders of the bit mask `blocks[i]` hold block i, with key i."""
    index = core.make_index()
    for _ in range(N_HOLDERS):
        holder = index.open()
        index.store(holder, array("Q", [key for key, mask in enumerate(blocks) if mask >> holder & 1]))
    return index


def prefix_of(n_blocks: int, n_tokens: int) -> Prefix:
    """Return a prompt with `n_blocks` of the smaller size, and half as many of the other."""
    return Prefix.from_keys(
        {2: array("Q", range(n_blocks)), 4: array("Q", range(n_blocks // 2))}, n_tokens=n_tokens
    )


@given(
    ranks=RANKS, blocks=st.tuples(BLOCKS, BLOCKS), n_blocks=st.integers(0, 14), n_tokens=st.integers(0, 60)
)
def test_every_endpoint_is_matched_on_its_best_rank(
    ranks: list[PlannedRank], blocks: tuple[list[int], list[int]], n_blocks: int, n_tokens: int
) -> None:
    held: dict[str, dict[int, Best]] = {}
    for endpoint, rank, size, layout, _ in ranks:
        n_keys = n_blocks * SIZES[0] // size
        match = naive_match(blocks[SIZES.index(size)][:n_keys], layout, n_tokens=n_tokens, block_size=size)
        held.setdefault(endpoint, {})[rank] = Best(rank, size, n_keys, match)
    best = {
        endpoint: max(own.values(), key=lambda one: (one.held.usable_blocks * one.block_size, -one.rank))
        for endpoint, own in held.items()
    }
    for core in CORES.values():
        indexes = {size: index_of(core, own) for size, own in zip(SIZES, blocks, strict=True)}
        matches = MatchPlan(ranks, tiers=TIERS, index_for=indexes.__getitem__).match(
            prefix_of(n_blocks, n_tokens)
        )
        assert {
            endpoint: Best(match.rank, match.block_size, match.n_blocks, match.held)
            for endpoint, match in matches.items()
        } == best
        for endpoint, own in held.items():
            usable = matches[endpoint].rank_usable_tokens
            assert usable.keys() <= own.keys()
            assert {rank: usable.get(rank, 0) for rank in own} == {
                rank: one.held.usable_blocks * one.block_size for rank, one in own.items()
            }


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_best_rank_is_that_with_most_usable_tokens_when_block_sizes_differ(core: IndexCore) -> None:
    indexes = {2: index_of(core, [1, 1, 1]), 4: index_of(core, [2, 2])}
    ranks = [
        PlannedRank("a", 0, 2, RankLayout((1, 0), (1, 1))),
        PlannedRank("a", 1, 4, RankLayout((2, 0), (1, 1))),
    ]

    match = MatchPlan(ranks, tiers=TIERS, index_for=indexes.__getitem__).match(prefix_of(4, 13))["a"]

    assert (match.rank, match.usable_tokens, match.rank_usable_tokens) == (1, 8, {0: 6, 1: 8})


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_endpoints_that_hold_nothing_share_one_match(core: IndexCore) -> None:
    index = index_of(core, [1, 1])
    ranks = [
        PlannedRank(name, 0, 4, RankLayout((1 << number, 0), (1, 1))) for number, name in enumerate("abc")
    ]
    matches = MatchPlan(ranks, tiers=TIERS, index_for=lambda _: index).match(prefix_of(4, 9))
    assert (matches["a"].usable_blocks, matches["b"].usable_blocks) == (2, 0)
    assert matches["b"] is matches["c"]


def test_plan_without_ranks_matches_nobody() -> None:
    plan = MatchPlan([], tiers=TIERS, index_for=lambda _: CORES["reference"].make_index())
    assert plan.match(prefix_of(2, 9)) == {}
