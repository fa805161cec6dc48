"""`lmetric-scorer`: prefers endpoints with few tokens to compute times few requests in flight."""

from __future__ import annotations

import math

import numpy as np

from .core.candidates import Candidates
from .core.columns import FloatArray
from .core.model import RequestView
from .core.operations import rate_by_load
from .core.params import BuildContext, PluginParams
from .core.prefix_source import PrefixSource
from .core.ratings import Inputs, Ratings
from .core.registry import Registry


class LMetricParams(PluginParams, frozen=True):
    """Parameters of `lmetric-scorer`."""

    prefix_match_info_producer_name: str = ""
    """Name of a prefix cache producer in `plugins`; empty: the fastest tier."""
    in_flight_load_producer_name: str = ""
    """Accepted without effect: kvatlas keeps one account of requests in flight."""


class LMetricScorer:
    """Score `(max - cost) / (max - min)`, where cost is the uncached tokens times the requests in flight plus 1.

    Only full blocks count. An endpoint without a prefix, or a prompt without a full block, scores 0. Ties: equal costs score
    the same, and 1 if all are equal.

    Args:
        source: counts the cached blocks of a match.

    Source: the reference's plugin of that name.
    """

    type = "lmetric-scorer"
    max_load_age_s = math.inf

    def __init__(self, source: PrefixSource) -> None:
        self._source = source

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        """Return one rating per candidate; raw is the cost, None if the prefix is unknown."""
        cost = self._cost(candidates)
        return Ratings(rate_by_load(cost), Inputs(cost))

    def _cost(self, candidates: Candidates) -> FloatArray:
        prefix = candidates.prefix
        if prefix is None:
            return np.full(len(candidates), np.nan)
        uncached = np.maximum(0.0, prefix.n_blocks - candidates.credit * self._source.blocks(prefix))
        cost = uncached * prefix.block_size * (candidates.in_flight_requests + 1.0)
        known: FloatArray = np.where(np.broadcast_to(prefix.n_blocks, cost.shape) > 0, cost, np.nan)
        return prefix.or_unknown(known)


def register(registry: Registry) -> None:
    """Register `lmetric-scorer`."""
    registry.scorers.add(LMetricScorer.type, LMetricParams, _make)


def _make(params: LMetricParams, context: BuildContext) -> LMetricScorer:
    return LMetricScorer(context.prefix_source(tier=None, producer=params.prefix_match_info_producer_name))
