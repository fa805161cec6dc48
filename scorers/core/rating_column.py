"""Ratings of one scorer as columns: one object for all candidates instead of one object per candidate."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import overload

from .model import Candidate, Rating


class RatingColumn(Sequence[Rating]):
    """Immutable sequence of ratings, each of which is built on access.

    Args:
        scores: one per candidate.
        raws: the inputs of the scores, None if unknown; one per candidate.
        loaded: the candidates, if the inputs are part of their loads; a rating then has the age of the load.
        now: monotonic seconds of the request, to which ages are relative.
    Raises:
        ValueError: the number of inputs differs from the number of scores.
    """

    __slots__ = ("_loaded", "_now", "_raws", "scores")

    def __init__(
        self,
        scores: Sequence[float],
        raws: Sequence[float | None],
        *,
        loaded: Sequence[Candidate] | None = None,
        now: float = 0.0,
    ) -> None:
        if len(scores) != len(raws):
            raise ValueError(f"{len(raws)} inputs for {len(scores)} scores")
        self.scores = array("d", scores)
        """One score per candidate."""
        self._raws, self._loaded, self._now = raws, loaded, now

    def __len__(self) -> int:
        return len(self.scores)

    @overload
    def __getitem__(self, index: int) -> Rating: ...

    @overload
    def __getitem__(self, index: slice) -> list[Rating]: ...

    def __getitem__(self, index: int | slice) -> Rating | list[Rating]:
        if isinstance(index, slice):
            return [self._rating(row) for row in range(len(self))[index]]
        return self._rating(index)

    def _rating(self, row: int) -> Rating:
        raw = self._raws[row]
        load = self._loaded[row].load if self._loaded is not None else None
        return Rating(
            raw=None if raw is None else float(raw),
            score=self.scores[row],
            age_s=None if load is None else load.age_s(self._now),
        )
