"""Cached prefixes of one request on all of its candidates, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import numpy as np

from ...indexer.match import PrefixMatch, RankMatch
from .columns import FloatArray, IntArray, Mask, RowArray
from .operations import int_cells

T = TypeVar("T")

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Union prefix as (tier, blocks), in prompt order."""

N_BESIDE_TIERS = 3
"""Rows of `PrefixColumns.figures` after those by tier: usable blocks, rank and predicted blocks."""

NO_RUNS: Mapping[int, Runs] = MappingProxyType({})
NO_RANKS: Mapping[int, Mapping[int, int]] = MappingProxyType({})


class PrefixColumns:
    """What each candidate holds of one prompt; see `PrefixMatch` for the meaning of the figures.

    Args:
        tiers: names of the configured tiers, fastest first.
        figures: int32 of shape (2 * tiers + 3, n): gap-free blocks by tier, union blocks by tier, usable blocks, number of
            the best rank, predicted blocks. A row of an unknown prefix is 0.
        n_blocks: full blocks of the prompt at the endpoint's block size: int32 of length n, or one number if all are equal.
            0 in rows of an array whose prefix is unknown.
        block_size: tokens per block, likewise.
        is_known: whether the endpoint has a prefix at all; None if all have.
        interleaved: row -> runs, for rows whose union prefix is not in the order of tiers.
        other_ranks: row -> rank -> usable tokens, for rows with further ranks that hold something.
        all_but_last: rows that reuse the whole prompt but for its last token.
    """

    __slots__ = (
        "all_but_last",
        "block_size",
        "figures",
        "interleaved",
        "is_known",
        "n_blocks",
        "other_ranks",
        "tiers",
    )

    def __init__(
        self,
        tiers: tuple[str, ...],
        figures: IntArray,
        n_blocks: IntArray | int,
        block_size: IntArray | int,
        *,
        is_known: Mask | None = None,
        interleaved: Mapping[int, Runs] = NO_RUNS,
        other_ranks: Mapping[int, Mapping[int, int]] = NO_RANKS,
        all_but_last: frozenset[int] = frozenset(),
    ) -> None:
        self.tiers, self.figures, self.n_blocks, self.block_size = tiers, figures, n_blocks, block_size
        self.is_known, self.interleaved, self.other_ranks = is_known, interleaved, other_ranks
        self.all_but_last = all_but_last

    @classmethod
    def of(cls, prefixes: Sequence[PrefixMatch | None]) -> PrefixColumns | None:
        """Return the columns of these matches, None if there is none. Cost: O(matches), slow."""
        known = [(row, each) for row, each in enumerate(prefixes) if each is not None]
        if not known:
            return None
        tiers = known[0][1].tiers
        n = len(prefixes)
        figures = np.zeros((2 * len(tiers) + N_BESIDE_TIERS, n), np.int32)
        n_blocks, block_size = np.zeros(n, np.int32), np.ones(n, np.int32)
        for row, each in known:
            held = each.held
            figures[:, row] = (
                *held.tier_blocks, *held.union_blocks, held.usable_blocks, each.rank, each.predicted_blocks
            )  # fmt: skip
            n_blocks[row], block_size[row] = each.n_blocks, each.block_size
        sizes = {(each.n_blocks, each.block_size) for _, each in known}
        return cls(
            tiers,
            figures,
            *(next(iter(sizes)) if len(sizes) == 1 else (n_blocks, block_size)),
            is_known=None if len(known) == n else np.array([each is not None for each in prefixes]),
            interleaved={row: each.held.interleaved for row, each in known if each.held.interleaved},
            other_ranks={row: each.other_ranks for row, each in known if each.other_ranks},
            all_but_last=frozenset(row for row, each in known if each.computed_tokens),
        )

    def __len__(self) -> int:
        return int(self.figures.shape[1])

    def __getitem__(self, row: int) -> PrefixMatch | None:
        """Return the match of one row, None if it is unknown."""
        if self.is_known is not None and not self.is_known[row]:
            return None
        figures = int_cells(self.figures, row)
        n_tiers = len(self.tiers)
        usable, rank, predicted = figures[2 * n_tiers :]
        held = RankMatch(
            figures[:n_tiers], figures[n_tiers : 2 * n_tiers], usable, self.interleaved.get(row, ())
        )
        return PrefixMatch(
            self.tiers,
            _in_row(self.block_size, row),
            _in_row(self.n_blocks, row),
            held,
            rank,
            self.other_ranks.get(row, {}),
            predicted,
            int(row in self.all_but_last),
        )

    @property
    def tier_blocks(self) -> IntArray:
        """Gap-free blocks from block 0 in each tier alone; shape (tiers, n)."""
        figures: IntArray = self.figures[: len(self.tiers)]
        return figures

    def blocks_in(self, tier: str) -> IntArray:
        """Return the gap-free blocks from block 0 in a configured tier alone."""
        blocks: IntArray = self.figures[self.tiers.index(tier)]
        return blocks

    @property
    def union_blocks(self) -> IntArray:
        """Blocks of the union prefix by their fastest tier; shape (tiers, n)."""
        figures: IntArray = self.figures[len(self.tiers) : 2 * len(self.tiers)]
        return figures

    @property
    def usable_blocks(self) -> IntArray:
        """Blocks that the engine itself would reuse."""
        figures: IntArray = self.figures[2 * len(self.tiers)]
        return figures

    @property
    def rank(self) -> IntArray:
        """Number of the best rank."""
        figures: IntArray = self.figures[2 * len(self.tiers) + 1]
        return figures

    @property
    def predicted_blocks(self) -> IntArray:
        """Blocks of the fastest tier's prefix that are only predicted."""
        figures: IntArray = self.figures[2 * len(self.tiers) + 2]
        return figures

    @property
    def usable_tokens(self) -> IntArray:
        """Tokens that the engine would not compute again."""
        tokens: IntArray = self.usable_blocks * self.block_size
        if self.all_but_last:
            tokens[list(self.all_but_last)] -= 1
        return tokens

    @property
    def reused_blocks(self) -> IntArray:
        """Usable blocks by the fastest tier that has them; shape (tiers, n)."""
        reused = np.empty_like(self.union_blocks)
        left = self.usable_blocks
        for tier, held in enumerate(self.union_blocks):
            reused[tier] = np.minimum(held, left)
            left = left - reused[tier]
        for row, runs in self.interleaved.items():
            reused[:, row] = 0
            remaining = int(self.usable_blocks[row])
            for tier, n_blocks in runs:
                reused[tier, row] += min(n_blocks, remaining)
                remaining -= min(n_blocks, remaining)
        return reused

    def share(self, blocks: FloatArray | IntArray) -> FloatArray:
        """Return numbers of blocks as shares of the prompt's blocks; 0 for a prompt without a full block."""
        n_blocks = self.n_blocks
        return blocks / (max(n_blocks, 1) if isinstance(n_blocks, int) else np.maximum(n_blocks, 1))

    def or_unknown(self, figures: FloatArray | IntArray) -> FloatArray:
        """Return figures by row, NaN where the prefix is unknown."""
        if self.is_known is None:
            return figures.astype(np.float64)
        return np.where(self.is_known, figures, np.nan)

    @property
    def max_blocks(self) -> int:
        """Full blocks of the prompt at the smallest block size in use."""
        return self.n_blocks if isinstance(self.n_blocks, int) else int(self.n_blocks.max())

    @property
    def holds_any(self) -> bool:
        """Whether any tier of any candidate has the first block, predictions included."""
        return bool(self.tier_blocks.any())

    def take(self, rows: RowArray) -> PrefixColumns:
        """Return the columns of some rows, in their order."""
        return PrefixColumns(
            self.tiers,
            self.figures[:, rows],
            self.n_blocks if isinstance(self.n_blocks, int) else self.n_blocks[rows],
            self.block_size if isinstance(self.block_size, int) else self.block_size[rows],
            is_known=self.is_known[rows] if self.is_known is not None else None,
            interleaved=_moved(self.interleaved, rows) if self.interleaved else self.interleaved,
            other_ranks=_moved(self.other_ranks, rows) if self.other_ranks else self.other_ranks,
            all_but_last=_moved_rows(self.all_but_last, rows) if self.all_but_last else self.all_but_last,
        )


def _in_row(sizes: IntArray | int, row: int) -> int:
    return sizes if isinstance(sizes, int) else int(sizes[row])


def _moved_rows(wanted: frozenset[int], rows: RowArray) -> frozenset[int]:
    return frozenset(new for new, row in enumerate(rows.tolist()) if row in wanted)


def _moved(by_row: Mapping[int, T], rows: RowArray) -> dict[int, T]:
    return {new: by_row[row] for new, row in enumerate(rows.tolist()) if row in by_row}
