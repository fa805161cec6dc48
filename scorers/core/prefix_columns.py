"""Cached prefixes of one request on all of its candidates, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...indexer.match import PrefixMatch, RankMatch
from .columns import Mask, RowArray

T = TypeVar("T")

IntArray: TypeAlias = NDArray[np.int32]

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Union prefix as (tier, blocks), in prompt order."""

N_BESIDE_TIERS = 3
"""Rows of `PrefixColumns.figures` after those by tier: usable blocks, rank and predicted blocks."""

_NONE: Mapping[int, Runs] = MappingProxyType({})
_NO_RANKS: Mapping[int, Mapping[int, int]] = MappingProxyType({})


class PrefixColumns:
    """What each candidate holds of one prompt; see `PrefixMatch` for the meaning of the figures.

    Args:
        tiers: names of the configured tiers, fastest first.
        figures: int32 of shape (2 * tiers + 3, n): gap-free blocks by tier, union blocks by tier, usable blocks, number of
            the best rank, predicted blocks. A row of an unknown prefix is 0.
        n_blocks: int32 of length n, full blocks of the prompt at the endpoint's block size; 0 if the prefix is unknown.
        block_size: int32 of length n, tokens per block.
        is_known: whether the endpoint has a prefix at all; None if all have.
        interleaved: row -> runs, for rows whose union prefix is not in the order of tiers.
        other_ranks: row -> rank -> usable tokens, for rows with further ranks that hold something.
    """

    __slots__ = ("block_size", "figures", "interleaved", "is_known", "n_blocks", "other_ranks", "tiers")

    def __init__(
        self,
        tiers: tuple[str, ...],
        figures: IntArray,
        n_blocks: IntArray,
        block_size: IntArray,
        *,
        is_known: Mask | None = None,
        interleaved: Mapping[int, Runs] = _NONE,
        other_ranks: Mapping[int, Mapping[int, int]] = _NO_RANKS,
    ) -> None:
        self.tiers, self.figures, self.n_blocks, self.block_size = tiers, figures, n_blocks, block_size
        self.is_known, self.interleaved, self.other_ranks = is_known, interleaved, other_ranks

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
        return cls(
            tiers,
            figures,
            n_blocks,
            block_size,
            is_known=None if len(known) == n else np.array([each is not None for each in prefixes]),
            interleaved={row: each.held.interleaved for row, each in known if each.held.interleaved},
            other_ranks={row: each.other_ranks for row, each in known if each.other_ranks},
        )

    def __len__(self) -> int:
        return len(self.n_blocks)

    def __getitem__(self, row: int) -> PrefixMatch | None:
        """Return the match of one row, None if it is unknown."""
        if self.is_known is not None and not self.is_known[row]:
            return None
        figures = self.figures[:, row].tolist()
        n_tiers = len(self.tiers)
        usable, rank, predicted = figures[2 * n_tiers :]
        held = RankMatch(
            tuple(figures[:n_tiers]),
            tuple(figures[n_tiers : 2 * n_tiers]),
            usable,
            self.interleaved.get(row, ()),
        )
        return PrefixMatch(
            self.tiers,
            int(self.block_size[row]),
            int(self.n_blocks[row]),
            held,
            rank,
            self.other_ranks.get(row, {}),
            predicted,
        )

    @property
    def tier_blocks(self) -> IntArray:
        """Gap-free blocks from block 0 in each tier alone; shape (tiers, n)."""
        figures: IntArray = self.figures[: len(self.tiers)]
        return figures

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
        return tokens

    def take(self, rows: RowArray) -> PrefixColumns:
        """Return the columns of some rows, in their order."""
        return PrefixColumns(
            self.tiers,
            self.figures[:, rows],
            self.n_blocks[rows],
            self.block_size[rows],
            is_known=self.is_known[rows] if self.is_known is not None else None,
            interleaved=_moved(self.interleaved, rows) if self.interleaved else self.interleaved,
            other_ranks=_moved(self.other_ranks, rows) if self.other_ranks else self.other_ranks,
        )

    def copy(self) -> PrefixColumns:
        """Return columns that do not change with these."""
        return PrefixColumns(
            self.tiers,
            self.figures.copy(),
            self.n_blocks.copy(),
            self.block_size.copy(),
            is_known=self.is_known.copy() if self.is_known is not None else None,
            interleaved=dict(self.interleaved),
            other_ranks=dict(self.other_ranks),
        )


def _moved(by_row: Mapping[int, T], rows: RowArray) -> dict[int, T]:
    return {new: by_row[row] for new, row in enumerate(rows.tolist()) if row in by_row}
