"""`endpoint-attribute-filter`: keeps endpoints of which any scraped series compares with a threshold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field

from ..core.attributes import attribute_remarks, checked_attribute
from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.columns import FloatArray, Mask
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Verdicts, keep_all
from ..core.registry import Registry

Operator = Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]

_COMPARISONS: Mapping[Operator, Callable[[FloatArray, float], Mask]] = {
    "LessThan": np.less,
    "LessThanOrEqual": np.less_equal,
    "GreaterThan": np.greater,
    "GreaterThanOrEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
}


class ThresholdParams(PluginParams, frozen=True):
    """`threshold`."""

    operator: Operator
    """Comparison that holds for endpoints which are kept."""
    value: float = 0.0
    """Value to compare with."""


class FilterAlgorithmParams(PluginParams, frozen=True):
    """`algorithm` of the filter."""

    type: Literal["threshold"]
    """The one algorithm."""
    threshold: ThresholdParams
    """Comparison."""


class EndpointAttributeFilterParams(PluginParams, frozen=True):
    """Parameters of `endpoint-attribute-filter`."""

    attribute: Annotated[str, Meta(min_length=1)]
    """Attribute of endpoints, as `metricsScrape` or an extractor names it."""
    algorithm: FilterAlgorithmParams
    """Comparison."""
    made_by: str = field(default="", name="producer")
    """Plugin that makes the attribute; without effect, since names of attributes are unique."""
    on_missing: Literal["Pass", "Fail", ""] = "Pass"
    """Whether endpoints whose attribute is unknown are kept (Pass) or dropped (Fail)."""
    fallback_on_empty: bool = False
    """Whether all endpoints are kept if none would be."""

    def remarks(self, context: BuildContext) -> Iterator[str]:
        """Yield that the attribute is unknown everywhere, if it is."""
        yield from super().remarks(context)
        yield from attribute_remarks(self.attribute, context)


class EndpointAttributeFilter:
    """Filter that drops endpoints whose scraped attribute fails a comparison.

    Args:
        attribute: name of the attribute.
        params: comparison, and what to do if the attribute is unknown or nobody is left.
    """

    type = "endpoint-attribute-filter"

    def __init__(self, attribute: str, params: EndpointAttributeFilterParams) -> None:
        self._attribute, self._params = attribute, params
        self._threshold = params.algorithm.threshold

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        values, unknown = candidates.attribute(self._attribute), self._params.on_missing != "Fail"
        keep = _COMPARISONS[self._threshold.operator](values, self._threshold.value)
        keep = np.where(np.isnan(values), unknown, keep)
        if self._params.fallback_on_empty and not keep.any():
            return keep_all(candidates)
        dropped = values[~keep]  # kept decisions have no attributes
        return Verdicts(keep, lambda _: [self._reason(value) for value in dropped.tolist()])

    def _reason(self, value: float) -> str:
        found = "unknown" if np.isnan(value) else f"{value:g}"
        return f"{self._attribute} is {found}, want {self._threshold.operator} {self._threshold.value:g}"


def register(registry: Registry) -> None:
    """Register `endpoint-attribute-filter`."""
    registry.filters.add(EndpointAttributeFilter.type, EndpointAttributeFilterParams, _make)


def _make(params: EndpointAttributeFilterParams, _: BuildContext) -> EndpointAttributeFilter:
    return EndpointAttributeFilter(checked_attribute(params.attribute, params.made_by, "attribute"), params)
