"""`max-score-picker`: picks the highest totals, ties at random."""

from __future__ import annotations

from ..core.max_score import MaxScorePicker
from ..core.registry import Registry
from .params import PickerParams


def register(registry: Registry) -> None:
    """Register `max-score-picker`."""
    registry.pickers.add(
        MaxScorePicker.type, PickerParams, lambda params, _: MaxScorePicker(params.n_endpoints)
    )
