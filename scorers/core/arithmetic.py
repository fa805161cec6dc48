"""Specification of the column operations that every decision makes, in numpy; see `operations`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .columns import FloatArray, IntArray, are_valid, unknown_as_zero, weighted_sums
from .shuffle import shuffled, skip_shuffle


def rate_by_load(column: FloatArray, /) -> FloatArray:
    """Score numbers of requests `(max - n) / (max - min)`, or 1 if all known numbers are equal.

    An unknown number scores 0 and is not part of min and max: an endpoint without metrics must not look idle.
    """
    least, most = np.fmin.reduce(column, initial=np.nan), np.fmax.reduce(column, initial=np.nan)
    if most > least:
        return unknown_as_zero((most - column) / (most - least))
    return np.where(column == most, 1.0, 0.0)


def rate_by_free_part(column: FloatArray, /) -> FloatArray:
    """Score used parts `1 - part`, in [0, 1]; an unknown part scores 0."""
    return unknown_as_zero(np.minimum(1.0, 1.0 - column))


def rate_by_share(blocks: FloatArray | IntArray, n_blocks: IntArray | int, credit: FloatArray) -> FloatArray:
    """Score numbers of blocks `credit * blocks / n_blocks`, in [0, 1]; 0 for a prompt without a full block."""
    return np.maximum(0.0, np.minimum(1.0, credit * (blocks / np.maximum(n_blocks, 1))))


def weigh(
    columns: Sequence[object], weights: tuple[float, ...], n: int
) -> tuple[FloatArray, FloatArray] | None:
    """Return scores of shape (scorers, candidates) and their totals, see `weighted_sums`.

    Args:
        columns: the scores of each scorer; read now, so that what a plugin does with them later has no effect.
        weights: the weight of each scorer.
        n: number of candidates, at least one.
    Returns:
        None if any column is not an array of `n` numbers in [0, 1].
    """
    if not all(_has_numbers(each, n) for each in columns):
        return None
    scores = np.array(columns, np.float64).reshape(len(columns), n)
    if columns and not are_valid(scores):
        return None
    return scores, weighted_sums(scores, weights)


def pick_highest(totals: FloatArray, rng: Callable[[], float]) -> tuple[int, bool]:
    """Return the row of the highest total, and whether several have it: then it is a random one of these.

    Args:
        totals: at least one, all finite.
        rng: uniform draws from [0, 1); as many are taken as for a shuffle of all rows.
    """
    best = int(totals.argmax())
    is_best = totals == totals[best]
    if np.count_nonzero(is_best) == 1:
        skip_shuffle(len(totals), rng)
        return best, False
    order = shuffled(len(totals), rng)
    return next(row for row in order if is_best[row]), True


def pick_near(totals: FloatArray, resolution: float, rng: Callable[[], float]) -> tuple[int, bool]:
    """Return the row of the highest total plus a draw times the resolution, and whether any other could have been.

    Lower totals are picked less often, and never if they are lower than the highest by the resolution.

    Args:
        totals: at least one, all finite.
        resolution: above 0.
        rng: uniform draws from [0, 1); one is taken per row.
    """
    draws = np.array([rng() for _ in range(len(totals))])
    n_near = np.count_nonzero(totals > totals.max() - resolution)
    return int((totals + resolution * draws).argmax()), bool(n_near > 1)


def float_cells(table: FloatArray, row: int) -> tuple[float, ...]:
    """Return one row of a table whose lines are its columns."""
    return tuple(table[:, row].tolist())


def int_cells(table: IntArray, row: int) -> tuple[int, ...]:
    """Return one row of a table whose lines are its columns."""
    return tuple(table[:, row].tolist())


def _has_numbers(given: object, n: int) -> bool:
    if not isinstance(given, np.ndarray):
        return False
    array = cast("NDArray[Any]", given)
    return array.shape == (n,) and array.dtype.kind in "fiub"
