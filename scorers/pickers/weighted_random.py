"""`weighted-random-picker`: picks endpoints at random, in proportion to their totals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.base import Rng
from ..core.columns import FloatArray
from ..core.registry import Registry
from ..core.shuffle import shuffled
from .params import PickerParams

LEAST_DRAW = 1e-10
"""Replacement of a draw of exactly 0, which would lose against every other. Source: the reference."""


class WeightedRandomPicker:
    """Picker that chooses first with probability `total / sum`; a total of 0 is picked only if no other is left.

    Args:
        count: most endpoints to pick.

    Source: weighted sampling without replacement by keys `U ** (1 / total)` (A-Res, Efraimidis and Spirakis).
    """

    type = "weighted-random-picker"
    max_load_age_s = math.inf

    def __init__(self, count: int = 1) -> None:
        self._count = count

    def pick(self, totals: FloatArray, *, rng: Rng) -> tuple[Sequence[int], bool]:
        """Return the chosen indices, largest key first, and whether there was more than one to choose from."""
        # The logarithm of the key has the same order, without underflow for small totals.
        keys = [
            math.log(rng() or LEAST_DRAW) / total if total > 0 else -math.inf for total in totals.tolist()
        ]
        order = shuffled(len(totals), rng)
        order.sort(key=lambda index: keys[index], reverse=True)
        n_choices = int(np.count_nonzero(totals > 0)) or len(totals)
        return order[: self._count], n_choices > 1


def register(registry: Registry) -> None:
    """Register `weighted-random-picker`."""
    registry.pickers.add(
        WeightedRandomPicker.type,
        PickerParams,
        lambda params, _: WeightedRandomPicker(params.n_endpoints),
    )
