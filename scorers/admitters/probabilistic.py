"""`probabilistic-admitter`: refuses sheddable requests with a probability that rises with the load of the endpoints."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from msgspec import Meta, field

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import PluginParams
from ..core.registry import Registry

Positive = Annotated[float, Meta(gt=0)]


class ProbabilisticParams(PluginParams, frozen=True):
    """Parameters of `probabilistic-admitter`."""

    queue_depth_threshold: Annotated[int, Meta(gt=0)] = 5
    """Waiting requests with which an endpoint is saturated."""
    kv_cache_util_threshold: Positive = field(default=0.8, name="kvCacheUtilThreshold")
    """Used part of the GPU blocks with which an endpoint is saturated."""
    power: Positive = 5.0
    """Exponent of the saturation."""
    k: Positive = 300.0
    """Factor of the probability."""


class ProbabilisticAdmitter:
    """Admitter that refuses requests of negative priority with probability `min(saturation ** power * k, 1)`.

    Saturation is the mean over the endpoints of the larger of queue and KV-cache utilization, each over its threshold; an
    endpoint of unknown load counts as 1.

    Args:
        params: thresholds and the curve.

    Source: the reference's plugin of that name.
    """

    type = "probabilistic-admitter"

    def __init__(self, params: ProbabilisticParams) -> None:
        self._params = params

    def admit(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> str | None:
        """Return why the request is refused, None to admit it."""
        if request.priority >= 0:
            return None
        params = self._params
        shares = np.fmax(
            candidates.waiting / params.queue_depth_threshold,
            candidates.kv_utilization / params.kv_cache_util_threshold,
        )
        saturation = float(np.where(np.isnan(shares), 1.0, shares).mean())
        probability = _probability(saturation, params)
        if rng() >= probability:
            return None
        return f"{self.type}: rejected, saturation={saturation:.3f} prob={probability:.2f}"


def _probability(saturation: float, params: ProbabilisticParams) -> float:
    if saturation <= 0.0:
        return 0.0
    # In logarithms, since a power of a long queue has no end.
    return math.exp(min(0.0, params.power * math.log(saturation) + math.log(params.k)))


def register(registry: Registry) -> None:
    """Register `probabilistic-admitter`."""
    registry.admitters.add(
        ProbabilisticAdmitter.type, ProbabilisticParams, lambda params, _: ProbabilisticAdmitter(params)
    )
