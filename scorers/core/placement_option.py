"""Placement that was compared with others by its cost, kept to explain a decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PlacementOption(NamedTuple):
    """A placement that a handler compared with others by its cost.

    Attributes:
        prefill: endpoint that computes the prompt; None if the one that answers does.
        decode: endpoint that answers.
        terms_ms: milliseconds of each part of its cost, by name; the names are the same for all options of a handler.
    """

    prefill: str | None
    decode: str
    terms_ms: Mapping[str, float]

    @property
    def total_ms(self) -> float:
        """Return its cost."""
        return sum(self.terms_ms.values())
