"""When requests release the blocks that they hold: from when their responses began, and how long responses take."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import numpy as np

from ..core.columns import FloatArray, RowArray
from .operations import refine_waits
from .release_arithmetic import N_KNOWN, N_SURVIVAL, SURVIVAL_STEPS

FIRST_ROWS = 16
"""Rows of a new table, which doubles when it is full."""

N_PARTS = 128
"""Latest responses from which is known how long they take."""

ENOUGH = 20
"""Responses from which it counts as known."""

RENEWED = 8
"""Responses after which it is computed again."""

ALL_FREE = (1 << N_KNOWN) - 1

AGES: FloatArray = np.arange(N_SURVIVAL) / SURVIVAL_STEPS
"""Ages of the survival, as parts of the time that a response is expected to take."""


class Releases:
    """Of each endpoint up to 16 requests that hold blocks, with the time since when; they stand for all there. Bounded.

    How long responses take is known as their survival: the part of them that takes longer than an age.
    """

    def __init__(self) -> None:
        self._begun: FloatArray = np.zeros((FIRST_ROWS, 2, N_KNOWN))
        """By row of the endpoint, the monotonic seconds and the tokens of the requests; 0 tokens where there is none."""
        self._free: dict[int, int] = {}
        """By row, the free places as bits; all are free where there is none."""
        self._parts: deque[float] = deque(maxlen=N_PARTS)
        self._survival: FloatArray | None = None
        self._n_new = 0

    def add(self, row: int, *, now: float, n_tokens: float) -> int:
        """Note that a request holds blocks, and return its place; -1 if it is not noted. Cost: O(1)."""
        free = self._free.get(row, ALL_FREE)
        if not free or n_tokens <= 0.0:
            return -1
        place = (free & -free).bit_length() - 1
        self._free[row] = free & (free - 1)
        while row >= len(self._begun):
            self._begun = np.concatenate([self._begun, np.zeros_like(self._begun)])
        self._begun[row, :, place] = now, n_tokens
        return place

    def remove(self, row: int, place: int) -> None:
        """Note that a request has released its blocks; nothing happens for the place -1. Cost: O(1)."""
        if place >= 0:
            self._free[row] |= 1 << place
            self._begun[row, 1, place] = 0.0

    def move(self, rows: Mapping[int, int]) -> None:
        """Give endpoints new rows, old -> new; others have no requests any more."""
        kept = {old: new for old, new in rows.items() if old in self._free}
        begun = np.zeros((max(FIRST_ROWS, 1 + max(kept.values(), default=0)), 2, N_KNOWN))
        for old, new in kept.items():
            begun[new] = self._begun[old]
        self._begun, self._free = begun, {new: self._free[old] for old, new in kept.items()}

    def learn(self, part: float) -> None:
        """Learn from the time that a response took, as a part of the expected one. Cost: O(1)."""
        self._parts.append(part)
        self._n_new += 1

    @property
    def survival(self) -> FloatArray | None:
        """Part of the responses that takes longer than each of `AGES`; None if too little is known. Cost: O(1) per response."""
        if self._n_new >= (RENEWED if self._survival is not None else ENOUGH):
            parts = np.sort(np.array(self._parts))
            self._survival = 1.0 - np.searchsorted(parts, AGES, side="right") / len(parts)
            self._n_new = 0
        return self._survival

    def refine(
        self,
        features: FloatArray,
        costs: FloatArray,
        ttft_ms: FloatArray,
        state: FloatArray,
        *,
        rows: RowArray,
        now: float,
        residence_ms: float,
    ) -> None:
        """Refine the waits for blocks, in place; see `refine_waits`."""
        survival = self.survival
        if survival is not None:
            refine_waits(features, costs, ttft_ms, state, self._begun, rows, survival, (now, residence_ms))
