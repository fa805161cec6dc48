"""Prefix matches of one prompt with all endpoints, as columns of one matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .figures import BLOCK_SIZE, PREDICTED, USABLE, Figures, predict_columns
from .match import PrefixMatch, RankLayout, RankMatch

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
        all_but_last: rows that reuse the whole prompt but for its last token.
        drops: whether any rank has blocks at the end of a match computed again, see `RankLayout.dropped`.
    """

    tiers: tuple[str, ...]
    figures: Figures
    is_known: NDArray[np.bool_] | None
    sizes: tuple[int, int] | None
    interleaved: dict[int, Runs]
    other_ranks: Mapping[int, Mapping[int, int]]
    has_ranks: bool = True
    drops: bool = False
    all_but_last: frozenset[int] = frozenset()

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
            computed = int(row in self.all_but_last)
            found.append(
                PrefixMatch(tiers, block_size, n_blocks, held, rank, others(row, {}), predicted, computed)
            )
        return found

    def predict(self, wanted: Sequence[tuple[int, int]], *, block_size: int, n_tokens: int) -> None:
        """Change to what results once endpoints hold leading blocks of the prompt in their fastest tier.

        Args:
            wanted: (row, blocks that the endpoint will hold), each row once. Rows with another block size or an unknown one do
                not change, nor those that hold as many already. Blocks after a gap that they would close, beyond the union
                prefix, do not count.
            block_size: tokens per block.
            n_tokens: tokens of the prompt.
        Cost: O(rows), 0.1 us each; more for interleaved rows.
        """
        interleaved = [
            row for row, n_blocks in wanted if row in self.interleaved and n_blocks > self.figures[0, row]
        ]
        predict_columns(self.figures, wanted, block_size, n_tokens)
        for row in interleaved:
            if self.figures[2 * len(self.tiers) + BLOCK_SIZE, row] == block_size:
                self._predict_interleaved(row, n_tokens=n_tokens)

    def reuse(self, row: int, n_blocks: int) -> None:
        """Set the usable blocks of an endpoint."""
        self.line(USABLE)[row] = n_blocks

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
