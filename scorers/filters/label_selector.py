"""`label-selector-filter`: keeps endpoints whose labels match a Kubernetes label selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import eq
from typing import Literal

import numpy as np
from msgspec import field

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Verdicts
from ..core.registry import Registry
from ..errors import ParametersError

PLUGIN_TYPE = "label-selector-filter"
OLD_TYPE = "by-label-selector"
"""Older name, deprecated in the reference."""

Operator = Literal["In", "NotIn", "Exists", "DoesNotExist"]

_HOLDS: Mapping[Operator, Callable[[str | None, tuple[str, ...]], bool]] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
}
"""Operator -> whether it accepts a label's value, which is None if the label is missing."""


class RequirementParams(PluginParams, frozen=True):
    """One entry of `matchExpressions`."""

    key: str
    """Name of the label."""
    operator: Operator
    """Condition on its value."""
    values: tuple[str, ...] = ()
    """Values for In and NotIn; empty for the others."""

    def holds(self, value: str | None) -> bool:
        """Return whether the condition accepts a label's value, None if the label is missing."""
        return _HOLDS[self.operator](value, self.values)


class LabelSelectorParams(PluginParams, frozen=True):
    """Parameters of `label-selector-filter`; all conditions must match, and without conditions every endpoint matches."""

    match_labels: dict[str, str] = field(default_factory=dict[str, str])
    """Labels with their required values."""
    match_expressions: tuple[RequirementParams, ...] = ()
    """Further conditions."""


class LabelSelectorFilter:
    """Filter that drops endpoints which violate a condition; NotIn and DoesNotExist accept a missing label.

    Args:
        params: conditions.
        plugin_type: `label-selector-filter`, or its older name.
    """

    def __init__(self, params: LabelSelectorParams, plugin_type: str) -> None:
        self._params, self.type = params, plugin_type

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        keep = np.ones(len(candidates), np.bool_)
        for key, wanted in self._params.match_labels.items():
            keep &= candidates.labelled(key).where(partial(eq, wanted))
        for each in self._params.match_expressions:
            keep &= candidates.labelled(each.key).where(each.holds)
        return Verdicts(keep, lambda dropped: [self._reason(labels) for labels in dropped.labels])

    def _reason(self, labels: Mapping[str, str]) -> str:
        for key, wanted in self._params.match_labels.items():
            if labels.get(key) != wanted:
                return f"label {key} is {labels.get(key)!r}, want {wanted!r}"
        for each in self._params.match_expressions:
            if not each.holds(labels.get(each.key)):
                values = f" {', '.join(each.values)}" if each.values else ""
                return f"label {each.key} is {labels.get(each.key)!r}, want {each.operator}{values}"
        raise LookupError("the labels violate no condition")


def register(registry: Registry) -> None:
    """Register `label-selector-filter`, by its older name too."""
    for plugin_type in (PLUGIN_TYPE, OLD_TYPE):
        registry.filters.add(plugin_type, LabelSelectorParams, partial(_make, plugin_type))


def _make(plugin_type: str, params: LabelSelectorParams, _: BuildContext) -> LabelSelectorFilter:
    for each in params.match_expressions:
        needs_values = each.operator in ("In", "NotIn")
        if needs_values != bool(each.values):
            wanted = "at least one value" if needs_values else "no values"
            raise ParametersError(
                f"found {len(each.values)} values for {each.operator} of label {each.key!r}, expected {wanted}",
                "matchExpressions",
            )
    return LabelSelectorFilter(params, plugin_type)
