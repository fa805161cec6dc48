"""The contracts of scorers and pickers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .model import Candidate, Ratings, RequestView

Rng = Callable[[], float]
"""Uniform draw from [0, 1), given by the caller so that decisions can be repeated."""


class Scorer(Protocol):
    """Rates candidates; pure, so equal input gives equal ratings."""

    @property
    def type(self) -> str:
        """Plugin type, the word in configuration."""
        ...

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate, in the same order, whatever that order is."""
        ...


class PickerPlugin(Protocol):
    """Chooses among totals."""

    @property
    def type(self) -> str:
        """Plugin type, the word in configuration."""
        ...

    def pick(self, totals: Sequence[float], *, count: int, rng: Rng) -> tuple[list[int], bool]:
        """Indices of the chosen, best first, at most `count`, and whether chance decided the first."""
        ...
