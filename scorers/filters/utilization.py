"""`utilization-filter`: drops endpoints that exceed a limit of load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from ..core.base import Rng, Verdicts
from ..core.model import Candidate, RequestView
from ..core.params import PluginParams
from ..core.registry import Registry

Metric = Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]


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

    def judge(self, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        verdicts = [self._verdict(candidate) for candidate in candidates]
        return [None] * len(verdicts) if self._fallback_on_empty and None not in verdicts else verdicts

    def _verdict(self, candidate: Candidate) -> str | None:
        for condition in self._conditions:
            value = _measured(condition.metric, candidate)
            if value is not None and value > condition.max_value:
                return f"{condition.metric} is {value:g}, at most {condition.max_value:g} allowed"
        return None


def _measured(metric: Metric, candidate: Candidate) -> float | None:
    if metric == "active-requests":
        return candidate.in_flight.requests
    load = candidate.load
    if load is None:
        return None
    scraped = {
        "running-requests": load.running,
        "waiting-queue": load.waiting,
        "kv-cache-utilization": load.kv_utilization,
    }
    return scraped[metric]


def register(registry: Registry) -> None:
    """Register `utilization-filter`."""
    registry.filters.add(
        UtilizationFilter.type,
        UtilizationParams,
        lambda params, _: UtilizationFilter(params.conditions, fallback_on_empty=params.fallback_on_empty),
    )
