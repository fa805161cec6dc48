"""Reuse distances in C++: figures of `ReferenceReuseDistances`, a tenth of the time and memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Self

from . import _native
from .reuse_distance import halvings


class NativeReuseDistances(_native.ReuseDistances):
    """`ReuseDistances` in C++; `use` is the core's own."""

    __slots__ = ()

    def __new__(cls, *, max_keys: int, max_capacity: int | None, half_life_s: float | None) -> Self:
        """See `ReferenceReuseDistances`."""
        return super().__new__(cls, max_keys, halvings(max_keys, max_capacity), half_life_s)

    @property
    def rate(self) -> float:
        """See `ReuseDistances.rate`."""
        return 0.5 ** self.halvings()

    @property
    def n_keys(self) -> int:
        """See `ReuseDistances.n_keys`."""
        return self.n_sampled()

    def hits(self, capacities: Sequence[int], *, now: float) -> list[float]:
        """See `ReuseDistances.hits`."""
        return self.hits_of(array("Q", capacities), now)

    def n_blocks(self, *, now: float) -> float:
        """See `ReuseDistances.n_blocks`."""
        return self.n_blocks_at(now)
