"""`slo-attainment-scorer`: prefers endpoints by how likely they meet the objectives of the request."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from msgspec import Meta

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Inputs, Ratings
from ..core.registry import Registry
from ..core.slo import slo_of

LOGISTIC_OF_NORMAL = 1.702
"""Factor with which the logistic function is that of a normal distribution, within 0.01."""

TTFT_ERROR, TPOT_ERROR = 0.5, 0.12
"""Standard deviations of the logarithms of observed by predicted times, before they are known."""

UNKNOWN = 0.5
"""Chance of an endpoint without a prediction."""

Positive = Annotated[float, Meta(gt=0)]


class SloAttainmentParams(PluginParams, frozen=True):
    """Parameters of `slo-attainment-scorer`."""

    ttft_error: Positive = TTFT_ERROR
    """Standard deviation of the logarithm of observed by predicted time to first token."""
    tpot_error: Positive = TPOT_ERROR
    """The same of the time per output token."""
    latency_prediction_info_producer_name: str = ""
    """Name of the `predicted-latency-producer` in `plugins`; empty: the one that there is."""


class SloAttainmentScorer:
    """Score the chance to meet both objectives: `P(ttft) * P(tpot)`, `P = 1 / (1 + (predicted / objective) ** (1.702 / error))`.

    All score 1 without objectives and before anything is predicted. Ties: endpoints with equal predictions score the same;
    so do, nearly, all that meet the objectives with ease, among which the other scorers decide.

    Args:
        params: errors of the predictions.
    """

    type = "slo-attainment-scorer"

    def __init__(self, params: SloAttainmentParams) -> None:
        self._params = params

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the predicted milliseconds to first token, None without a prediction."""
        slo, predictions = slo_of(request.headers), candidates.predictions
        if slo is None or predictions is None:
            return Ratings(np.ones(len(candidates)))
        scores = np.ones(len(candidates))
        if slo.ttft_ms is not None:
            scores *= chances(predictions.ttft_ms / slo.ttft_ms, self._params.ttft_error)
        if slo.tpot_ms is not None and not np.isnan(predictions.tpot_ms).all():
            scores *= chances(predictions.tpot_ms / slo.tpot_ms, self._params.tpot_error)
        return Ratings(scores, Inputs(predictions.ttft_ms))


def chances(ratio: FloatArray, error: float) -> FloatArray:
    """Return the chances to meet a limit, `UNKNOWN` for NaN.

    Args:
        ratio: predicted times by their limit.
        error: standard deviation of the logarithm of observed by predicted times.
    """
    exponent = np.clip(LOGISTIC_OF_NORMAL / error * np.log(np.maximum(ratio, 1e-9)), -50.0, 50.0)
    found: FloatArray = 1.0 / (1.0 + np.exp(exponent))
    return np.where(np.isnan(found), UNKNOWN, found)


def register(registry: Registry) -> None:
    """Register `slo-attainment-scorer`."""
    registry.scorers.add(SloAttainmentScorer.type, SloAttainmentParams, _make)


def _make(params: SloAttainmentParams, context: BuildContext) -> SloAttainmentScorer:
    context.known_predictor(params.latency_prediction_info_producer_name)
    return SloAttainmentScorer(params)
