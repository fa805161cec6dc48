"""`utilization-filter`: drops endpoints that exceed a limit of load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import RequestView
from ..core.params import PluginParams
from ..core.ratings import Verdicts, keep_all
from ..core.registry import Registry

Metric = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]


_COLUMNS: Mapping[Metric, Callable[[Candidates], FloatArray]] = {
    "active-requests": attrgetter("in_flight_requests"),
    "running-requests": attrgetter("running"),
    "waiting-queue": attrgetter("waiting"),
    "kv-cache-utilization": attrgetter("kv_utilization"),
}


class ConditionParams(PluginParams, frozen=True):
    """One entry of `conditions`."""

    metric: Metric
    """Metric to compare."""
    max_value: Annotated[float, Meta(ge=0)]
    """Largest value with which an endpoint is kept."""


class UtilizationParams(PluginParams, frozen=True):
    """Parameters of `utilization-filter`."""

    conditions: Annotated[tuple[ConditionParams, ...], Meta(min_length=1)]
    """Limits, none of which an endpoint may exceed."""
    fallback_on_empty: bool = False
    """Whether all endpoints are kept if every one exceeds a limit."""


class UtilizationFilter:
    """Filter that drops endpoints which exceed a limit; an unknown load exceeds none.

    Args:
        conditions: limits.
        fallback_on_empty: whether to keep all instead of none.
    """

    type = "utilization-filter"

    def __init__(self, conditions: Sequence[ConditionParams], *, fallback_on_empty: bool) -> None:
        self._conditions, self._fallback_on_empty = tuple(conditions), fallback_on_empty

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        keep = np.ones(len(candidates), np.bool_)
        for each in self._conditions:
            keep &= ~(
                _COLUMNS[each.metric](candidates) > each.max_value
            )  # NaN, which is unknown, exceeds nothing
        if self._fallback_on_empty and not keep.any():
            return keep_all(candidates)
        return Verdicts(keep, self._reasons)

    def _reasons(self, dropped: Candidates) -> list[str]:
        reasons = [""] * len(dropped)
        for each in reversed(self._conditions):  # the first one that is exceeded counts
            values = _COLUMNS[each.metric](dropped)
            for row in np.flatnonzero(values > each.max_value).tolist():
                reasons[row] = f"{each.metric} is {values[row]:g}, at most {each.max_value:g} allowed"
        return reasons


def register(registry: Registry) -> None:
    """Register `utilization-filter`."""
    registry.filters.add(
        UtilizationFilter.type,
        UtilizationParams,
        lambda params, _: UtilizationFilter(params.conditions, fallback_on_empty=params.fallback_on_empty),
    )
