"""`endpoint-attribute-scorer`: prefers endpoints by any scraped series."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field

from .core.attributes import attribute_remarks, checked_attribute
from .core.candidates import Candidates
from .core.columns import FloatArray, unknown_as_zero
from .core.model import RequestView
from .core.operations import rate_by_load
from .core.params import BuildContext, PluginParams
from .core.ratings import Inputs, Ratings
from .core.registry import Registry
from .errors import ParametersError

PLUGIN_TYPE = "endpoint-attribute-scorer"


class FixedRangeParams(PluginParams, frozen=True):
    """`fixedRange`."""

    min: float
    """Value at one end of the range."""
    max: float
    """Value at the other end, more than `min`."""


class AdaptiveRangeParams(PluginParams, frozen=True):
    """`adaptiveRange`, which has no keys."""


class NormalizationParams(PluginParams, frozen=True):
    """`normalization`; without a range, the adaptive one."""

    fixed_range: FixedRangeParams | None = None
    """Scores between two values; what is beyond counts as the nearer one."""
    adaptive_range: AdaptiveRangeParams | None = None
    """Scores between the smallest and the largest value of the candidates."""


class ScorerAlgorithmParams(PluginParams, frozen=True):
    """`algorithm` of the scorer."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    """Whether a lower or a higher value is better."""
    normalization: NormalizationParams = NormalizationParams()
    """Range of the values."""


class EndpointAttributeScorerParams(PluginParams, frozen=True):
    """Parameters of `endpoint-attribute-scorer`."""

    attribute_key: Annotated[str, Meta(min_length=1)]
    """Attribute of endpoints, as `metricsScrape` or an extractor names it."""
    algorithm: ScorerAlgorithmParams
    """Formula."""
    made_by: str = field(default="", name="producer")
    """Plugin that makes the attribute; without effect, since names of attributes are unique."""

    def remarks(self, context: BuildContext) -> Iterator[str]:
        """Yield that the attribute is unknown everywhere, if it is."""
        yield from super().remarks(context)
        yield from attribute_remarks(self.attribute_key, context)


class EndpointAttributeScorer:
    """Score a scraped attribute linearly; an endpoint whose attribute is unknown scores 0.

    Ties: equal values score the same; with the adaptive range, all score 1 if every known value is equal.

    Args:
        attribute: name of the attribute.
        lower_is_better: whether the lowest value scores 1.
        fixed: smallest and largest value of the range, None for those of the candidates.
        plugin_type: its type, for plugins that are this one with other defaults.
    """

    def __init__(
        self,
        attribute: str,
        *,
        lower_is_better: bool,
        fixed: tuple[float, float] | None = None,
        plugin_type: str = PLUGIN_TYPE,
    ) -> None:
        self._attribute, self._lower_is_better, self._fixed = attribute, lower_is_better, fixed
        self.type = plugin_type

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the attribute."""
        values = candidates.attribute(self._attribute)
        return Ratings(self._scores(values), Inputs(values))

    def _scores(self, values: FloatArray) -> FloatArray:
        if self._fixed is None:
            return rate_by_load(values if self._lower_is_better else -values)
        least, most = self._fixed
        part = np.minimum(1.0, np.maximum(0.0, (values - least) / (most - least)))  # NaN stays
        return unknown_as_zero(1.0 - part if self._lower_is_better else part)


def register(registry: Registry) -> None:
    """Register `endpoint-attribute-scorer`."""
    registry.scorers.add(PLUGIN_TYPE, EndpointAttributeScorerParams, _make)


def _make(params: EndpointAttributeScorerParams, _: BuildContext) -> EndpointAttributeScorer:
    ranges = params.algorithm.normalization
    if ranges.fixed_range is not None and ranges.adaptive_range is not None:
        raise ParametersError("found fixedRange and adaptiveRange, expected one of them", "algorithm")
    fixed = ranges.fixed_range
    if fixed is not None and fixed.min >= fixed.max:
        raise ParametersError(
            f"found fixedRange from {fixed.min:g} to {fixed.max:g}, expected min below max", "algorithm"
        )
    return EndpointAttributeScorer(
        checked_attribute(params.attribute_key, params.made_by, "attributeKey"),
        lower_is_better=params.algorithm.type == "linear_lower_is_better",
        fixed=(fixed.min, fixed.max) if fixed is not None else None,
    )
