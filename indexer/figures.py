"""The matrix of prefix matches, and operations on it: in C++, or in Python if the native core was not built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Figures: TypeAlias = NDArray[np.int32]
"""Matrix of shape (2 * tiers + 5, rows), a column per endpoint. Its lines are: gap-free blocks by tier; union blocks by tier;
usable blocks; number of the best rank; predicted blocks; full blocks of the prompt; tokens per block. See `PrefixMatch`."""

USABLE, RANK, PREDICTED, N_BLOCKS, BLOCK_SIZE = range(5)
"""Lines of `Figures` after those by tier."""

N_BESIDE_TIERS = 5
"""Number of lines of `Figures` after those by tier."""

HeldColumn: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], int, int, int, int, int]
"""A column of `Figures` as a tuple: row; gap-free blocks by tier; union blocks by tier; the lines after those."""


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


def predict_in_python(
    figures: Figures, wanted: Sequence[tuple[int, int]], block_size: int, n_tokens: int
) -> None:
    """See `MatchColumns.predict`; for columns whose union prefix is in the order of tiers."""
    n_tiers = (len(figures) - N_BESIDE_TIERS) // 2
    reusable = max(0, n_tokens - 1) // block_size
    for row, n_blocks in wanted:
        column: list[int] = figures[:, row].tolist()
        beside = column[2 * n_tiers :]
        if beside[BLOCK_SIZE] != block_size or n_blocks <= column[0]:
            continue
        beside[PREDICTED] = n_blocks - column[0]
        beside[USABLE] = max(beside[USABLE], min(n_blocks, reusable))
        # The first blocks of the union are in the fastest tier: each other tier has what comes after them.
        union, end = [n_blocks], column[n_tiers]
        for held in column[n_tiers + 1 : 2 * n_tiers]:
            end += held
            union.append(min(held, max(end - n_blocks, 0)))
        figures[:, row] = (n_blocks, *column[1:n_tiers], *union, *beside)


try:
    from ._native import predict_columns as _predict_columns
except ImportError:  # installed without a C++ compiler
    _predict_columns = predict_in_python

predict_columns = _predict_columns
"""See `MatchColumns.predict`; for columns whose union prefix is in the order of tiers."""
