"""`random-picker`: picks endpoints at random, independent of their totals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core.base import Rng
from ..core.columns import FloatArray
from ..core.registry import Registry
from ..core.shuffle import shuffled
from .params import PickerParams


class RandomPicker:
    """Picker for which every endpoint is equally likely.

    Args:
        count: most endpoints to pick.
    """

    type = "random-picker"
    max_load_age_s = math.inf

    def __init__(self, count: int = 1) -> None:
        self._count = count

    def pick(self, totals: FloatArray, *, rng: Rng) -> tuple[Sequence[int], bool]:
        """Return the chosen indices, and whether there was more than one to choose from."""
        return shuffled(len(totals), rng)[: self._count], len(totals) > 1


def register(registry: Registry) -> None:
    """Register `random-picker`."""
    registry.pickers.add(RandomPicker.type, PickerParams, lambda params, _: RandomPicker(params.n_endpoints))
