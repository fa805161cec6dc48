"""`prefix-cache-affinity-filter`: keeps the endpoints that hold most of the prompt, unless they are much busier."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, field

from ..core.base import Rng
from ..core.candidates import Candidates
from ..core.columns import FloatArray, Mask
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.prefix_source import PrefixSource
from ..core.ratings import Verdicts, keep_all
from ..core.registry import Registry
from ..errors import ParametersError

Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0)]


class PrefixCacheAffinityParams(PluginParams, frozen=True):
    """Parameters of `prefix-cache-affinity-filter`."""

    affinity_threshold: Share = 0.8
    """Least share of the prompt's blocks with which an endpoint is sticky; 0 switches the filter off."""
    exploration_probability: Share = 0.0
    """Share of the requests for which all endpoints are kept."""
    max_ttft_penalty_ms: Amount = field(default=18_000.0, name="maxTTFTPenaltyMs")
    """Additional expected wait on the sticky endpoints above which all endpoints are kept; 0 means no limit."""
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    """Source of the expected wait: tokens ahead by `peakPrefillThroughput`, or the predicted time to first token."""
    peak_prefill_throughput: Amount = 15_928.0
    """Prompt tokens that an endpoint computes per second; also used while nothing is predicted."""
    tier: str | None = None
    """Name of a configured tier; absent: the source of the named producer, or the fastest tier if none is named."""
    prefix_match_info_producer_name: str = ""
    """Name of a prefix cache producer in `plugins`."""
    in_flight_load_producer_name: str = ""
    """Accepted without effect: kvatlas keeps one account of requests in flight."""
    latency_prediction_info_producer_name: str = ""
    """Name of the `predicted-latency-producer` in `plugins`; empty: the one that there is."""


class PrefixCacheAffinityFilter:
    """Filter that drops endpoints below the threshold if at least one is at or above it.

    It keeps all if there is only one endpoint, for a random share of the requests, and if the expected wait of the best
    sticky endpoint exceeds that of the best other by more than the limit.

    Args:
        source: counts the cached blocks of a match.
        params: thresholds.
    """

    type = "prefix-cache-affinity-filter"
    max_load_age_s = math.inf

    def __init__(self, source: PrefixSource, params: PrefixCacheAffinityParams) -> None:
        self._source, self._params = source, params

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        """Return one verdict per candidate."""
        params = self._params
        if len(candidates) <= 1 or not params.affinity_threshold or rng() < params.exploration_probability:
            return keep_all(candidates)
        is_sticky = self._shares(candidates) >= params.affinity_threshold
        if not is_sticky.any() or is_sticky.all() or self._waits_too_long(candidates, is_sticky):
            return keep_all(candidates)
        return Verdicts(is_sticky, self._reasons)

    def _reasons(self, dropped: Candidates) -> list[str]:
        threshold = self._params.affinity_threshold
        return [
            f"holds {share:.2f} of the prompt, others {threshold:g} or more"
            for share in self._shares(dropped)
        ]

    def _shares(self, candidates: Candidates) -> FloatArray:
        prefix = candidates.prefix
        if prefix is None:
            return np.zeros(len(candidates))
        return prefix.share(candidates.credit * self._source.blocks(prefix))

    def _waits_too_long(self, candidates: Candidates, is_sticky: Mask) -> bool:
        params = self._params
        if not params.max_ttft_penalty_ms:
            return False
        waits_ms = self._predicted_ms(candidates)
        if waits_ms is None:
            if not params.peak_prefill_throughput:
                return False
            waits_ms = candidates.in_flight_tokens * (1000.0 / params.peak_prefill_throughput)
        return bool(waits_ms[is_sticky].min() - waits_ms[~is_sticky].min() > params.max_ttft_penalty_ms)

    def _predicted_ms(self, candidates: Candidates) -> FloatArray | None:
        """Return the predicted times to first token, None if they are not the source or one of them is unknown."""
        predictions = candidates.predictions
        if self._params.ttft_source != "latencyPredictor" or predictions is None:
            return None
        return predictions.ttft_ms if predictions.is_known.all() else None


def register(registry: Registry) -> None:
    """Register `prefix-cache-affinity-filter`."""
    registry.filters.add(PrefixCacheAffinityFilter.type, PrefixCacheAffinityParams, _make)


def _make(params: PrefixCacheAffinityParams, context: BuildContext) -> PrefixCacheAffinityFilter:
    if params.ttft_source == "latencyPredictor":
        context.known_predictor(params.latency_prediction_info_producer_name)
    elif params.max_ttft_penalty_ms and not params.peak_prefill_throughput:
        raise ParametersError(
            "found 0, expected more than 0 while maxTTFTPenaltyMs is not 0", "peakPrefillThroughput"
        )
    source = context.prefix_source(tier=params.tier, producer=params.prefix_match_info_producer_name)
    return PrefixCacheAffinityFilter(source, params)
