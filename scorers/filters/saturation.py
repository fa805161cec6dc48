"""`utilization-detector` in a profile: drops saturated endpoints, unless all are."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import PluginParams
from ..core.ratings import Verdicts, keep_all
from ..core.registry import Registry


class SaturationParams(PluginParams, frozen=True):
    """Parameters of `utilization-detector`; outside of a profile they are those of `admission`."""

    queue_depth_threshold: Annotated[int, Meta(ge=0)] = 5
    """Number of waiting requests from which an endpoint is dropped."""
    kv_cache_util_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """Used part of the KV cache from which an endpoint is dropped."""
    metrics_staleness_threshold: str | None = None
    """No effect on the filter: an endpoint is dropped from `metricsScrape.staleAfter` on."""
    headroom: Annotated[float, Meta(ge=0)] = 0.0
    """Part by which both limits are raised for the filter."""


class SaturationFilter:
    """Filter that drops saturated endpoints and those of unknown load; keeps all if none is left.

    Source: llm-d-router's utilization detector.

    Args:
        params: see `SaturationParams`.
    """

    type = "utilization-detector"

    def __init__(self, params: SaturationParams) -> None:
        self._max_waiting = params.queue_depth_threshold * (1 + params.headroom)
        self._max_used = params.kv_cache_util_threshold * (1 + params.headroom)

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        # NaN, which is unknown, is below nothing
        keep = (candidates.waiting < self._max_waiting) & (candidates.kv_utilization < self._max_used)
        return Verdicts(keep, self._reasons) if np.any(keep) else keep_all(candidates)

    def _reasons(self, dropped: Candidates) -> list[str]:
        return [
            self._reason(waiting, used)
            for waiting, used in zip(dropped.waiting.tolist(), dropped.kv_utilization.tolist(), strict=True)
        ]

    def _reason(self, waiting: float, used: float) -> str:
        if waiting >= self._max_waiting:
            return f"{waiting:g} requests wait, fewer than {self._max_waiting:g} allowed"
        if used >= self._max_used:
            return f"{used:g} of the KV cache is used, less than {self._max_used:g} allowed"
        return "the load is unknown"


def register(registry: Registry) -> None:
    """Register `utilization-detector`."""
    registry.filters.add(SaturationFilter.type, SaturationParams, lambda params, _: SaturationFilter(params))
