"""`label-selector-filter`: keeps endpoints whose labels match a Kubernetes label selector."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from msgspec import field

from ..core.base import Rng, Verdicts
from ..core.model import Candidate, RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from ..errors import ParametersError

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


class LabelSelectorParams(PluginParams, frozen=True):
    """Parameters of `label-selector-filter`; all conditions must match, and without conditions every endpoint matches."""

    match_labels: dict[str, str] = field(default_factory=dict[str, str])
    """Labels with their required values."""
    match_expressions: tuple[RequirementParams, ...] = ()
    """Further conditions."""


class LabelSelectorFilter:
    """Filter that drops endpoints which violate a condition; NotIn and DoesNotExist accept a missing label."""

    type = "label-selector-filter"

    def __init__(self, params: LabelSelectorParams) -> None:
        self._params = params

    def judge(self, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        return [self._verdict(candidate.labels) for candidate in candidates]

    def _verdict(self, labels: Mapping[str, str]) -> str | None:
        for key, wanted in self._params.match_labels.items():
            if labels.get(key) != wanted:
                return f"label {key} is {labels.get(key)!r}, want {wanted!r}"
        for each in self._params.match_expressions:
            if not _HOLDS[each.operator](labels.get(each.key), each.values):
                values = f" {', '.join(each.values)}" if each.values else ""
                return f"label {each.key} is {labels.get(each.key)!r}, want {each.operator}{values}"
        return None


def register(registry: Registry) -> None:
    """Register `label-selector-filter`."""
    registry.filters.add(LabelSelectorFilter.type, LabelSelectorParams, _make)


def _make(params: LabelSelectorParams, _: BuildContext) -> LabelSelectorFilter:
    for each in params.match_expressions:
        needs_values = each.operator in ("In", "NotIn")
        if needs_values != bool(each.values):
            wanted = "at least one value" if needs_values else "no values"
            raise ParametersError(
                f"found {len(each.values)} values for {each.operator} of label {each.key!r}, expected {wanted}",
                "matchExpressions",
            )
    return LabelSelectorFilter(params)
