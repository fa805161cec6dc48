"""`by-label`: keeps endpoints whose label has one of some values. Superseded by `label-selector-filter`."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Verdicts
from ..core.registry import Registry
from ..errors import ParametersError


class ByLabelParams(PluginParams, frozen=True):
    """Parameters of `by-label`."""

    label: Annotated[str, Meta(min_length=1)]
    """Name of the label."""
    valid_values: tuple[str, ...] = ()
    """Values with which an endpoint is kept."""
    allows_no_label: bool = False
    """Whether endpoints without the label are kept too."""


class ByLabelFilter:
    """Filter that drops endpoints whose label has none of the valid values.

    Args:
        label: name of the label.
        valid: values with which an endpoint is kept; with None, endpoints without the label are kept.
    """

    type = "by-label"
    max_load_age_s = math.inf

    def __init__(self, label: str, valid: Collection[str | None]) -> None:
        self._label, self._valid = label, frozenset(valid)

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        return Verdicts(candidates.labelled(self._label).where(self._valid.__contains__), self._reasons)

    def _reasons(self, dropped: Candidates) -> list[str]:
        values = [labels.get(self._label) for labels in dropped.labels]
        return [f"label {self._label} is {value!r}, which is not valid" for value in values]


def register(registry: Registry) -> None:
    """Register `by-label`."""
    registry.filters.add(ByLabelFilter.type, ByLabelParams, _make)


def _make(params: ByLabelParams, _: BuildContext) -> ByLabelFilter:
    if not params.valid_values and not params.allows_no_label:
        raise ParametersError("found no value, expected at least one, or allowsNoLabel: true", "validValues")
    return ByLabelFilter(params.label, [*params.valid_values, *([None] if params.allows_no_label else [])])
