"""Types of columns, and arithmetic that scorers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
"""One number per row, or several rows of them; NaN is unknown."""

IntArray: TypeAlias = NDArray[np.int32]
"""One number of blocks or the like per row, or several rows of them."""

CodeArray: TypeAlias = NDArray[np.int8]
"""Codes of a small set of values, one per row."""

SmallFloats: TypeAlias = NDArray[np.float32]
"""Numbers of kept decisions."""

RowArray: TypeAlias = NDArray[np.intp]
"""Row numbers."""

Mask: TypeAlias = NDArray[np.bool_]
"""Whether a row is kept, one per row."""


def unknown_as_zero(scores: FloatArray) -> FloatArray:
    """Return scores of at least 0, with 0 for an unknown input (NaN): what is not known must not look good."""
    known: FloatArray = np.fmax(scores, 0.0)
    return known


def are_valid(scores: FloatArray) -> bool:
    """Return whether all are in [0, 1]; NaN is not. At least one."""
    return bool(np.minimum.reduce(scores, axis=None) >= 0.0 and np.maximum.reduce(scores, axis=None) <= 1.0)


def weighted_sums(scores: FloatArray, weights: Sequence[float]) -> FloatArray:
    """Return the totals of scores of shape (scorers, candidates).

    Products are added one scorer after the other, since the order of additions is part of a total.
    """
    products: FloatArray = np.array(weights, np.float64)[:, np.newaxis] * scores
    n = int(scores.shape[1])
    if n > 1:
        totals = np.empty(n)
        np.add.reduce(products, axis=0, out=totals)
        return totals
    total = 0.0
    for product in products.ravel().tolist():  # numpy adds a single column in pairs
        total += product
    return np.full(n, total)


SHOWN_DIGITS = 7
"""Digits of a 32-bit number that are shown: all that it has."""


def shown(column: NDArray[np.float32 | np.float64]) -> FloatArray:
    """Return numbers for people: of a 32-bit number the digits that it has, so that 0.1 does not read 0.10000000149."""
    numbers = column.astype(np.float64)
    if column.dtype == np.float64:
        return numbers
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = 10.0 ** (SHOWN_DIGITS - 1 - np.floor(np.log10(np.abs(numbers))))
        rounded = np.rint(numbers * scale) / scale
        return np.where(np.rint(numbers) == numbers, numbers, rounded)
