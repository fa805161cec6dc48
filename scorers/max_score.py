"""`max-score-picker`: takes the highest totals, ties at random."""

from __future__ import annotations

from collections.abc import Sequence

from .base import Rng
from .registry import NoParams, Registry


class MaxScorePicker:
    """Highest total first. Exactly equal totals come in uniformly random order; nearly equal ones do not mix."""

    type = "max-score-picker"

    def pick(self, totals: Sequence[float], *, count: int, rng: Rng) -> tuple[list[int], bool]:
        """Indices of the chosen, best first, and whether several shared the highest total.

        Shuffling first and sorting stably keeps every order of a group of ties equally likely.
        """
        order = list(range(len(totals)))
        for last in range(len(order) - 1, 0, -1):
            other = int(rng() * (last + 1))
            order[last], order[other] = order[other], order[last]
        order.sort(key=lambda index: totals[index], reverse=True)
        tie = len(order) > 1 and totals[order[0]] == totals[order[1]]
        return order[:count], tie


def register(registry: Registry) -> None:
    """Adds `max-score-picker`, which takes no parameters."""
    registry.add_picker(MaxScorePicker.type, NoParams, lambda _: MaxScorePicker())
