"""The picker of the highest total, which every profile also falls back to."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Rng
from .shuffle import shuffled


class MaxScorePicker:
    """Highest total first. Exactly equal totals come in uniformly random order; nearly equal ones do not mix.

    Args:
        count: endpoints to pick, at most.
    """

    type = "max-score-picker"

    def __init__(self, count: int = 1) -> None:
        self._count = count

    def pick(self, totals: Sequence[float], *, rng: Rng) -> tuple[list[int], bool]:
        """Indices of the chosen, best first, and whether several shared the highest total.

        Shuffling first and sorting stably keeps every order of a group of ties equally likely.
        """
        order = shuffled(len(totals), rng)
        best = max(totals)
        tie = totals.count(best) > 1
        if self._count == 1:  # the first of the sorted ones, without sorting them
            return [next(row for row in order if totals[row] == best)], tie
        order.sort(key=lambda index: totals[index], reverse=True)
        return order[: self._count], tie
