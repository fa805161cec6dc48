"""Random order from uniform draws."""

from __future__ import annotations

from collections.abc import Callable


def shuffled(n: int, rng: Callable[[], float]) -> list[int]:
    """Return 0 to n - 1 in uniformly random order. Cost: n - 1 draws."""
    order = list(range(n))
    for last in range(n - 1, 0, -1):
        other = int(rng() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


def skip_shuffle(n: int, rng: Callable[[], float]) -> None:
    """Take the draws of a shuffle whose order does not matter, so that later draws do not depend on that."""
    for _ in range(n - 1):
        rng()
