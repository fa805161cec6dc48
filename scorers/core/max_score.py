"""Picker of the highest total, which is also the fallback of every profile."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .base import Rng
from .columns import FloatArray
from .operations import pick_highest, pick_near
from .shuffle import shuffled


class MaxScorePicker:
    """Picker of the highest totals. Exactly equal totals are in uniformly random order.

    Chance decides between nearly equal ones only if scorers cannot tell them apart.

    Args:
        count: most endpoints to pick.
    """

    type = "max-score-picker"
    max_load_age_s = math.inf

    def __init__(self, count: int = 1) -> None:
        self._count = count

    def pick(self, totals: FloatArray, *, rng: Rng) -> tuple[Sequence[int], bool]:
        """Return the chosen indices, best first, and whether several share the highest total.

        A shuffle before the stable sort makes every order of tied totals equally likely.
        """
        if self._count == 1:
            row, tie = pick_highest(totals, rng)
            return [row], tie
        rows = np.array(shuffled(len(totals), rng))
        picked = rows[np.argsort(-totals[rows], kind="stable")[: self._count]].tolist()
        return picked, bool(np.count_nonzero(totals == totals.max()) > 1)

    def pick_near(self, totals: FloatArray, resolution: float, *, rng: Rng) -> tuple[Sequence[int], bool]:
        """See `PicksNear.pick_near`. Chance decides the first place alone, see `arithmetic.pick_near`."""
        row, by_chance = pick_near(totals, resolution, rng)
        if self._count == 1:
            return [row], by_chance
        others = np.argsort(-totals, kind="stable").tolist()
        others.remove(row)
        return [row, *others[: self._count - 1]], by_chance
