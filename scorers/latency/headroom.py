"""`latency-scorer`: prefers endpoints by the headroom between predicted times and the objectives of the request."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field

from ..core.candidates import Candidates
from ..core.columns import FloatArray, Mask, unknown_as_zero
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.predictions import Predictions
from ..core.prefix_source import PrefixSource
from ..core.ratings import Inputs, Ratings
from ..core.registry import Registry

STEPS = 100
"""Scores are multiples of 1 / STEPS. Source: the reference."""

NO_RANGE_MS = 1e-9
"""Headrooms that differ by at most this are equal. Source: the reference."""

Weight = Annotated[float, Meta(ge=0, le=1_000_000_000)]
"""Bounded as weights of scorers are: an infinite sum would make every part 0."""


class LatencyParams(PluginParams, frozen=True):
    """Parameters of `latency-scorer`."""

    ttft_weight: Weight = field(default=0.8, name="ttftWeight")
    """Weight of the headroom of the time to first token."""
    tpot_weight: Weight = field(default=0.2, name="tpotWeight")
    """Weight of the headroom of the time per output token."""
    headroom_selection_strategy: Literal["least", "most"] = "least"
    """Whether, of endpoints that meet the objectives, those with the least or the most headroom are best."""
    composite_kv_weight: Weight = field(default=1.0, name="compositeKVWeight")
    """Without predictions: weight of the free part of the GPU blocks."""
    composite_queue_weight: Weight = 1.0
    """Without predictions: weight of a short queue."""
    composite_prefix_weight: Weight = 1.0
    """Without predictions: weight of the cached part of the prompt."""
    latency_prediction_info_producer_name: str = ""
    """Name of the `predicted-latency-producer` in `plugins`; empty: the one that there is."""
    prefix_match_info_producer_name: str = ""
    """Without predictions: name of a prefix cache producer in `plugins`; empty: the fastest tier."""


class LatencyScorer:
    """Score by headroom in one group of endpoints; all others score 0.

    The group is the first that is not empty: those that meet both objectives or have no prediction; those without a request
    in flight; those that miss the time per output token alone, then the time to first token alone; the rest. Without any
    prediction the score is a sum of free blocks, short queue and cached prefix. Ties: equal headrooms score the same.

    Args:
        params: weights.
        source: counts the cached blocks of a match.

    Source: the reference's plugin of that name.
    """

    type = "latency-scorer"

    def __init__(self, params: LatencyParams, source: PrefixSource) -> None:
        self._params, self._source = params, source

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the predicted milliseconds to first token, None without a prediction."""
        predictions = candidates.predictions
        if predictions is None or not (is_known := predictions.is_known).any():
            return Ratings(self._without_predictions(candidates))
        room = predictions.has_room | ~is_known
        if room.any():
            scores = self._in_group(predictions, room, self._params.headroom_selection_strategy)
        else:
            group = _missing_group(predictions, candidates.in_flight_requests == 0)
            scores = self._in_group(predictions, group, "least")
        return Ratings(scores, Inputs(predictions.ttft_ms))

    def _in_group(
        self, predictions: Predictions, group: Mask, strategy: Literal["least", "most"]
    ) -> FloatArray:
        params = self._params
        ttft, ttft_range = _normal(predictions.ttft_headroom_ms, group)
        tpot, tpot_range = _normal(predictions.tpot_headroom_ms, group)
        total = params.ttft_weight + params.tpot_weight
        weights = (params.ttft_weight / total, params.tpot_weight / total) if total > 0 else (1.0, 0.0)
        if ttft_range <= NO_RANGE_MS < tpot_range:
            weights = (0.0, 1.0)
        elif tpot_range <= NO_RANGE_MS < ttft_range:
            weights = (1.0, 0.0)
        combined = weights[0] * ttft + weights[1] * tpot
        if strategy == "least":
            combined = 1.0 - combined
        steps = np.minimum(np.floor(combined * STEPS) + 1.0, STEPS)
        scores: FloatArray = np.where(group, steps / STEPS, 0.0)
        return scores

    def _without_predictions(self, candidates: Candidates) -> FloatArray:
        params = self._params
        weights = (params.composite_kv_weight, params.composite_queue_weight, params.composite_prefix_weight)
        total = sum(weights)
        of_kv, of_queue, of_prefix = (each / total for each in weights) if total > 0 else (1.0, 0.0, 0.0)
        free = unknown_as_zero(np.minimum(1.0, 1.0 - candidates.kv_utilization))
        waiting = candidates.waiting
        longest = float(np.fmax.reduce(waiting, initial=0.0))
        short = unknown_as_zero((longest - waiting) / longest if longest > 0 else 1.0 - 0.0 * waiting)
        sums = of_kv * free + of_queue * short + of_prefix * self._cached(candidates)
        scores: FloatArray = np.minimum(np.floor(sums * STEPS + 0.5) / STEPS, 1.0)
        return scores

    def _cached(self, candidates: Candidates) -> FloatArray:
        prefix = candidates.prefix
        if prefix is None:
            return np.zeros(len(candidates))
        return np.minimum(1.0, prefix.share(candidates.credit * self._source.blocks(prefix)))


def _missing_group(predictions: Predictions, is_idle: Mask) -> Mask:
    """Return the best group of endpoints that all miss an objective."""
    misses_ttft, misses_tpot = predictions.ttft_headroom_ms < 0, predictions.tpot_headroom_ms < 0
    for group in (is_idle, misses_tpot & ~misses_ttft, misses_ttft & ~misses_tpot):
        if group.any():
            return group
    return np.ones(len(is_idle), np.bool_)


def _normal(headroom_ms: FloatArray, group: Mask) -> tuple[FloatArray, float]:
    """Return distances from 0 scaled to 0..1 within the group, 0.5 if all are equal, and the range before scaling."""
    distance = np.where(np.isnan(headroom_ms), 0.0, np.abs(headroom_ms))
    least, most = float(distance[group].min()), float(distance[group].max())
    if most - least <= NO_RANGE_MS:
        return np.full(len(distance), 0.5), 0.0
    return (distance - least) / (most - least), most - least


def register(registry: Registry) -> None:
    """Register `latency-scorer`."""
    registry.scorers.add(LatencyScorer.type, LatencyParams, _make)


def _make(params: LatencyParams, context: BuildContext) -> LatencyScorer:
    context.known_predictor(params.latency_prediction_info_producer_name)
    source = context.prefix_source(tier=None, producer=params.prefix_match_info_producer_name)
    return LatencyScorer(params, source)
