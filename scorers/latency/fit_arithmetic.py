"""Specification of the regression of the cost model, in numpy and Python; see `operations`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.columns import FloatArray


def add_observation(
    squares: FloatArray,
    products: FloatArray,
    parts: Sequence[float],
    observed: float,
    weight: float,
    decay: float,
) -> None:
    """Add an observation to the sums of a regression, in place.

    Args:
        squares: sums of products of parts, shape (d, d).
        products: sums of products of parts and observations, shape (d).
        parts: of the prediction, d numbers.
        observed: what was observed.
        weight: of this observation.
        decay: factor of all earlier ones.
    """
    column = np.array(parts)
    weighted = weight * column
    squares *= decay
    squares += weighted[:, np.newaxis] * column
    products *= decay
    products += weighted * observed


def solved(
    factors: Sequence[float],
    squares: FloatArray,
    products: FloatArray,
    lows: Sequence[float],
    high: float,
    n_sweeps: int,
) -> list[float]:
    """Return better factors of a regression by coordinate descent; each is regularized to 1 with weight 1.

    Args:
        factors: to start from.
        squares: see `add_observation`.
        products: see `add_observation`.
        lows: least of each factor.
        high: largest factor.
        n_sweeps: passes over all factors.
    """
    found, lines, targets = list(factors), squares.tolist(), products.tolist()
    for _ in range(n_sweeps):
        for row, line in enumerate(lines):
            others = sum(map(float.__mul__, line, found)) - line[row] * found[row]
            best = (targets[row] + 1.0 - others) / (line[row] + 1.0)
            found[row] = min(max(best, lows[row]), high)
    return found
