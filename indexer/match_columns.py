"""Prefix matches of one prompt with all endpoints, as columns of one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .match import PrefixMatch, RankLayout, RankMatch

Figures: TypeAlias = NDArray[np.int32]
"""Matrix of shape (2 * tiers + 5, rows), a column per endpoint. Its lines are: gap-free blocks by tier; union blocks by tier;
usable blocks; number of the best rank; predicted blocks; full blocks of the prompt; tokens per block. See `PrefixMatch`."""

USABLE, RANK, PREDICTED, N_BLOCKS, BLOCK_SIZE = range(5)
"""Lines of `Figures` after those by tier."""

N_BESIDE_TIERS = 5
"""Number of lines of `Figures` after those by tier."""

HeldColumn: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], int, int, int, int, int]
"""A column of `Figures` as a tuple: row; gap-free blocks by tier; union blocks by tier; the lines after those."""

Runs: TypeAlias = tuple[tuple[int, int], ...]
"""Union prefix as (tier, blocks), in prompt order."""


class MatchedRank(NamedTuple):
    """A rank to be matched.

    Attributes:
        row: column of `Figures` that shows the best rank of its endpoint.
        number: data-parallel rank.
        layout: its holders by tier.
        is_first: whether the column shows this rank while no rank of the endpoint holds anything.
        shares_row: whether other ranks have the same row.
    """

    row: int
    number: int
    layout: RankLayout
    is_first: bool = True
    shares_row: bool = False


class SparseMatches(NamedTuple):
    """What few columns have beside their figures.

    Attributes:
        interleaved: (row, rank, runs) of ranks whose union prefix is not in the order of tiers.
        shared: (row, rank, usable tokens) as int32 of ranks that share their row, if they hold anything.
    """

    interleaved: list[tuple[int, int, Runs]]
    shared: bytes


def held_columns(figures: Figures) -> list[HeldColumn]:
    """Return the columns with a block in any tier."""
    n_tiers = (len(figures) - N_BESIDE_TIERS) // 2
    rows: list[int] = np.flatnonzero(figures[:n_tiers].any(axis=0)).tolist()
    found: list[HeldColumn] = []
    for row in rows:
        column: list[int] = figures[:, row].tolist()
        usable, rank, predicted, n_blocks, block_size = column[2 * n_tiers :]
        tiers, union = tuple(column[:n_tiers]), tuple(column[n_tiers : 2 * n_tiers])
        found.append((row, tiers, union, usable, rank, predicted, n_blocks, block_size))
    return found


@dataclass(slots=True)
class MatchColumns:
    """What every endpoint holds of one prompt, in its best rank: most usable tokens, then lowest number.

    Attributes:
        tiers: names of the configured tiers, fastest first.
        figures: the matches; belongs to this object.
        is_known: which endpoints have a block size, so that their match is known; None if all have.
        sizes: (full blocks of the prompt, tokens per block) if all known endpoints have the same, else None.
        interleaved: row -> runs, if the union prefix is not in the order of tiers.
        other_ranks: row -> rank -> usable tokens, for rows with further ranks that hold something.
        has_ranks: whether a row may show another rank than 0.
    """

    tiers: tuple[str, ...]
    figures: Figures
    is_known: NDArray[np.bool_] | None
    sizes: tuple[int, int] | None
    interleaved: dict[int, Runs]
    other_ranks: Mapping[int, Mapping[int, int]]
    has_ranks: bool = True

    def line(self, which: int) -> NDArray[np.int32]:
        """Return one of the lines after those by tier."""
        line: NDArray[np.int32] = self.figures[2 * len(self.tiers) + which]
        return line

    def known_rows(self) -> list[int]:
        """Return the rows whose match is known."""
        n_rows = self.figures.shape[1]
        return [row for row in range(n_rows) if self.is_known is None or self.is_known[row]]

    def matches(self, rows: list[int]) -> list[PrefixMatch]:
        """Return the matches of some known endpoints. Cost: about 1 us per row."""
        tiers, n_tiers = self.tiers, len(self.tiers)
        runs, others = self.interleaved.get, self.other_ranks.get
        found: list[PrefixMatch] = []
        for row, column in zip(rows, self.figures[:, rows].T.tolist(), strict=True):
            usable, rank, predicted, n_blocks, block_size = column[2 * n_tiers :]
            held = RankMatch(
                tuple(column[:n_tiers]), tuple(column[n_tiers : 2 * n_tiers]), usable, runs(row, ())
            )
            found.append(PrefixMatch(tiers, block_size, n_blocks, held, rank, others(row, {}), predicted))
        return found

    def predict(self, rows: Sequence[int], n_blocks: Sequence[int], *, n_tokens: int) -> None:
        """Change to what results once endpoints hold leading blocks of the prompt in their fastest tier.

        Args:
            rows: known endpoints with the same block size, each once.
            n_blocks: the blocks that each will hold; fewer than it holds already change nothing. Blocks after a gap that
                they would close, beyond the union prefix, do not count.
            n_tokens: tokens of the prompt.
        Cost: O(rows), some ten operations on columns; more for interleaved rows.
        """
        at, wanted = np.array(rows, np.intp), np.array(n_blocks, np.int32)
        is_more = wanted > self.figures[0, at]
        at, wanted = at[is_more], wanted[is_more]
        if not at.size:
            return
        columns = self.figures[:, at]
        n_tiers = len(self.tiers)
        held, union, beside = columns[0], columns[n_tiers : 2 * n_tiers], columns[2 * n_tiers :]
        beside[PREDICTED] = wanted - held
        reusable = np.minimum(wanted, max(0, n_tokens - 1) // beside[BLOCK_SIZE])
        beside[USABLE] = np.maximum(beside[USABLE], reusable)
        # The first `wanted` blocks of the union are in the fastest tier: each other tier has what comes after them.
        union[:] = np.minimum(union, np.maximum(union.cumsum(axis=0) - wanted, 0))
        columns[0] = union[0] = wanted
        self.figures[:, at] = columns
        for row in self.interleaved.keys() & set(at.tolist()) if self.interleaved else ():
            self._predict_interleaved(row, n_tokens=n_tokens)

    def _predict_interleaved(self, row: int, *, n_tokens: int) -> None:
        column, n_tiers = self.figures[:, row], len(self.tiers)
        wanted = int(column[0])
        runs = _with_fastest(self.interleaved[row], wanted)
        held = RankMatch.from_runs(tuple(column[:n_tiers].tolist()), runs, 0)
        fastest = runs[0][1]
        column[0] = fastest
        column[n_tiers : 2 * n_tiers] = held.union_blocks
        beside = column[2 * n_tiers :]
        beside[PREDICTED] += fastest - wanted
        beside[USABLE] = max(beside[USABLE], min(fastest, max(0, n_tokens - 1) // beside[BLOCK_SIZE]))
        if held.interleaved:
            self.interleaved[row] = held.interleaved
        else:
            del self.interleaved[row]


def _with_fastest(runs: Runs, n_blocks: int) -> Runs:
    """Return the runs of a union prefix with the first `n_blocks` in tier 0."""
    rest: list[tuple[int, int]] = []
    position = 0
    for tier, n in runs:
        position += n
        if position > n_blocks:
            rest.append((tier, min(n, position - n_blocks)))
    if rest and rest[0][0] == 0:
        n_blocks += rest.pop(0)[1]
    return ((0, n_blocks), *rest)
