"""Picker of the highest total, which is also the fallback of every profile."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .base import Rng
from .columns import FloatArray
from .operations import pick_highest
from .shuffle import shuffled


class MaxScorePicker:
    """Picker of the highest totals. Exactly equal totals are in uniformly random order; nearly equal ones are not.

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
