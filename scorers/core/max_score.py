"""Picker of the highest total, which is also the fallback of every profile."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Rng
from .shuffle import shuffled


class MaxScorePicker:
    """Picker of the highest totals. Exactly equal totals are in uniformly random order; nearly equal ones are not.

    Args:
        count: most endpoints to pick.
    """

    type = "max-score-picker"

    def __init__(self, count: int = 1) -> None:
        self._count = count

    def pick(self, totals: Sequence[float], *, rng: Rng) -> tuple[list[int], bool]:
        """Return the chosen indices, best first, and whether several share the highest total.

        A shuffle before the stable sort makes every order of tied totals equally likely.
        """
        order = shuffled(len(totals), rng)
        best = max(totals)
        tie = totals.count(best) > 1
        if self._count == 1:  # the first of the sorted order, without the sort
            return [next(row for row in order if totals[row] == best)], tie
        order.sort(key=lambda index: totals[index], reverse=True)
        return order[: self._count], tie
