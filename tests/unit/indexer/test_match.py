"""Per-tier prefix, union runs and the engine's own reuse rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.match import (
    PrefixMatch,
    PresenceRun,
    RankLayout,
    RankMatch,
    TierRun,
    Window,
    leading_blocks,
    measure,
)

BLOCK = 4
GPU, CPU, DISK, WINDOW = 1, 2, 4, 8
LAYOUT = RankLayout(tiers=(GPU, CPU, DISK), chunks=(1, 1, 1))


def presence(*blocks: int) -> list[PresenceRun]:
    """Build one run per block, up to the first block without holder, as in the index."""
    held = blocks[: blocks.index(0)] if 0 in blocks else blocks
    return [PresenceRun(end, holders) for end, holders in enumerate(held, start=1)]


def match(*blocks: int, n_tokens: int = 1000, chunk: int = 1, windows: tuple[Window, ...] = ()) -> RankMatch:
    layout = RankLayout(tiers=LAYOUT.tiers, chunks=(1, chunk, chunk), windows=windows)
    return measure(presence(*blocks), layout, n_tokens=n_tokens, block_size=BLOCK)


def test_tier_prefixes_are_gap_free_in_that_tier_alone() -> None:
    assert match(GPU | CPU, CPU, GPU | CPU, DISK).tier_blocks == (1, 3, 0)


def test_union_runs_give_each_block_in_its_fastest_tier() -> None:
    assert match(GPU | CPU, CPU, CPU, GPU, DISK | CPU).runs == ((0, 1), (1, 2), (0, 1), (1, 1))


@pytest.mark.parametrize(
    ("blocks", "n_tokens", "chunk", "usable"),
    [
        pytest.param((GPU, GPU), 9, 1, 2, id="gpu_only"),
        pytest.param((GPU, GPU), 8, 1, 1, id="last_token_is_always_computed"),
        pytest.param((GPU | CPU, GPU | CPU), 8, 1, 2, id="slower_tier_may_cover_the_last_token"),
        pytest.param((GPU, CPU, DISK), 100, 1, 3, id="slower_tiers_continue_after_gpu"),
        pytest.param((CPU, CPU), 100, 1, 2, id="cpu_alone"),
        pytest.param((CPU, GPU), 100, 1, 1, id="gpu_behind_a_cpu_block_is_not_loaded"),
        pytest.param((CPU,) * 3, 100, 4, 0, id="part_of_a_chunk_is_nothing"),
        pytest.param((CPU,) * 4, 100, 4, 4, id="one_chunk"),
        pytest.param((CPU,) * 7, 100, 4, 4, id="chunk_and_a_part"),
        pytest.param((GPU, GPU | CPU, CPU, CPU), 100, 2, 4, id="starts_with_the_chunk_of_the_boundary"),
        pytest.param((GPU | CPU, CPU, GPU), 100, 2, 1, id="less_than_a_chunk_gained_does_not_count"),
        pytest.param((GPU | CPU, CPU, CPU, CPU), 100, 2, 4, id="boundary_inside_a_chunk"),
        pytest.param((GPU, CPU, CPU, CPU), 100, 2, 1, id="boundary_chunk_not_whole_in_cpu"),
        pytest.param((CPU, CPU, DISK, DISK), 100, 2, 4, id="chunks_of_several_tiers"),
        pytest.param((CPU, DISK), 100, 2, 0, id="chunk_split_over_tiers"),
        pytest.param((CPU,) * 4, 15, 4, 0, id="prompt_shorter_than_the_chunk"),
        pytest.param((CPU,) * 4, 16, 4, 4, id="prompt_exactly_the_chunk"),
        pytest.param((), 100, 1, 0, id="nothing"),
        pytest.param((GPU,), 0, 1, 0, id="empty_prompt"),
    ],
)
def test_usable_prefix_follows_the_engine(
    blocks: tuple[int, ...], n_tokens: int, chunk: int, usable: int
) -> None:
    assert match(*blocks, n_tokens=n_tokens, chunk=chunk).usable_blocks == usable


@pytest.mark.parametrize(
    ("blocks", "usable"),
    [
        pytest.param((GPU, GPU, GPU | WINDOW, GPU | WINDOW), 4, id="window_before_the_boundary"),
        pytest.param((GPU, GPU | WINDOW, GPU | WINDOW, GPU), 3, id="shorter_boundary_with_its_window"),
        pytest.param((GPU | WINDOW, GPU, GPU | WINDOW, GPU), 1, id="leading_run_when_no_window_is_whole"),
        pytest.param((GPU, GPU, GPU, GPU), 0, id="full_attention_alone_is_nothing"),
        pytest.param((WINDOW, WINDOW), 0, id="window_alone_is_nothing"),
    ],
)
def test_sliding_window_groups_bound_the_prefix(blocks: tuple[int, ...], usable: int) -> None:
    assert match(*blocks, windows=(Window(WINDOW, 2),)).usable_blocks == usable


def test_every_full_attention_group_must_hold_a_block() -> None:
    layout = RankLayout(tiers=(1 | 16, 0), chunks=(1, 1))
    rows = measure(presence(17, 17, 1), layout, n_tokens=100, block_size=BLOCK)
    assert (rows.tier_blocks, rows.usable_blocks) == ((2, 0), 2)


def test_tier_without_holders_holds_nothing() -> None:
    layout = RankLayout(tiers=(0, 2), chunks=(1, 1))
    assert measure(presence(2), layout, n_tokens=100, block_size=BLOCK).tier_blocks == (0, 1)


@given(st.lists(st.integers(0, 7), max_size=12), st.integers(0, 60), st.integers(1, 4))
def test_figures_are_consistent(blocks: list[int], n_tokens: int, chunk: int) -> None:
    rows = match(*blocks, n_tokens=n_tokens, chunk=chunk)
    union = sum(n_blocks for _, n_blocks in rows.runs)
    assert rows.usable_blocks <= union
    assert rows.usable_blocks * BLOCK <= n_tokens
    assert max(rows.tier_blocks) <= union
    assert rows.usable_blocks >= min(rows.tier_blocks[0], max(n_tokens - 1, 0) // BLOCK)
    assert all(a != b for (a, _), (b, _) in zip(rows.runs, rows.runs[1:], strict=False))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=8))
def test_runs_come_back_whatever_their_order(drawn: list[tuple[int, int]]) -> None:
    runs = [run for before, run in zip([(-1, 0), *drawn], drawn, strict=False) if before[0] != run[0]]
    made = RankMatch.from_runs((0, 0, 0), runs, 0)
    assert made.runs == tuple(runs)
    assert made.union_blocks == tuple(sum(n for tier, n in runs if tier == each) for each in range(3))
    assert (not made.interleaved) == (runs == sorted(runs) and len({tier for tier, _ in runs}) == len(runs))


@given(st.integers(0, 2**70))
def test_leading_blocks_counts_set_bits_from_the_start(bits: int) -> None:
    text = bin(bits)[2:][::-1]
    assert leading_blocks(bits) == len(text) - len(text.lstrip("1"))


def test_prefix_match_gives_its_figures_by_tier_name() -> None:
    held = match(GPU | CPU, CPU, CPU, GPU, DISK | CPU)
    whole = PrefixMatch(("gpu", "cpu", "disk"), BLOCK, 6, held, rank=2)
    assert whole.tier_blocks == {"gpu": 1, "cpu": 3, "disk": 0}
    assert whole.runs == (TierRun("gpu", 1), TierRun("cpu", 2), TierRun("gpu", 1), TierRun("cpu", 1))
    assert (whole.usable_blocks, whole.usable_tokens) == (3, 3 * BLOCK)
