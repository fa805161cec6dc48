"""`latency-slo-admitter`: refuses sheddable requests whose objectives no endpoint is expected to meet."""

from __future__ import annotations

import numpy as np

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.registry import Registry
from ..core.slo import slo_of

COLD_KV_UTILIZATION = 0.02
"""Part of the GPU blocks in use below which an endpoint is cold, so that its predictions are no reason to refuse. Source: the reference."""


class LatencySloParams(PluginParams, frozen=True):
    """Parameters of `latency-slo-admitter`."""

    latency_prediction_info_producer_name: str = ""
    """Name of the `predicted-latency-producer` in `plugins`; empty: the one that there is."""


class LatencySloAdmitter:
    """Admitter that refuses a request of negative priority with objectives if every endpoint is expected to miss one of them.

    It admits if nothing is predicted, and while any endpoint is idle, cold, or of unknown load.
    """

    type = "latency-slo-admitter"

    def admit(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> str | None:  # noqa: ARG002 (Admitter)
        """Return why the request is refused, None to admit it."""
        if request.priority >= 0 or (slo := slo_of(request.headers)) is None:
            return None
        predictions = candidates.predictions
        if predictions is None or not predictions.is_known.any():
            return None
        busy = (candidates.running > 0) & (candidates.kv_utilization >= COLD_KV_UTILIZATION)  # NaN is neither
        if not busy.all():
            return None
        meets = predictions.is_known
        if slo.ttft_ms is not None:
            meets &= predictions.ttft_headroom_ms > 0
        if slo.tpot_ms is not None:
            meets &= predictions.tpot_headroom_ms >= 0
        return None if np.any(meets) else "no valid endpoint available to serve the request"


def register(registry: Registry) -> None:
    """Register `latency-slo-admitter`."""
    registry.admitters.add(LatencySloAdmitter.type, LatencySloParams, _make)


def _make(params: LatencySloParams, context: BuildContext) -> LatencySloAdmitter:
    context.known_predictor(params.latency_prediction_info_producer_name)
    return LatencySloAdmitter()
