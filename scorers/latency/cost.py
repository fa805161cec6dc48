"""`latency-cost-scorer`: prefers endpoints with an earlier expected first token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta, field

from ..core.candidates import Candidates
from ..core.columns import FloatArray
from ..core.decision import Decision
from ..core.model import RequestView
from ..core.params import BuildContext, PluginParams
from ..core.ratings import Inputs, Ratings
from ..core.registry import Registry
from .features import FIRST_LOAD, OVERHEAD, PREFILL, QUEUE, features
from .fit import LinearFit

MAX_GROUPS = 64
"""Most groups with their own coefficients; all further groups share one set."""

DEFAULT_LOAD_SPEEDS = (100_000.0, 20_000.0)
"""Tokens loaded per second, by position after the first tier; the last applies to every further tier. The first is 26 GB/s
for a model of 256 KiB per token, a common speed of host memory; the second is a fast shared file system."""

Positive = Annotated[float, Meta(gt=0)]


class LatencyCostParams(PluginParams, frozen=True):
    """Parameters of `latency-cost-scorer`; its costs are the priors of the fit."""

    overhead_ms: Positive = 30.0
    """Milliseconds of a request with a fully cached prompt and no requests ahead."""
    prefill_tokens_per_second: Positive = 15_928.0
    """Prompt tokens that an endpoint computes per second."""
    load_tokens_per_second: dict[str, Positive] = field(default_factory=dict[str, Positive])
    """Tokens that an endpoint loads per second, by the name of the slower tier; default 100000 for the second, 20000 for all further."""
    fit: bool = True
    """Whether the costs are learned from observed times to first token."""
    group_label: str = ""
    """Label whose value groups endpoints with equal costs; empty: all endpoints are one group."""
    max_factor: Annotated[float, Meta(gt=1)] = 20.0
    """Largest factor between a learned cost and its configured value, in both directions."""
    half_life_observations: Annotated[float, Meta(ge=50)] = 1000.0
    """Number of later observations after which an observation has half its weight."""
    scale_ms: Positive = 1000.0
    """Expected time in milliseconds that scores 0.5."""


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """Costs of one group of endpoints.

    Attributes:
        group: value of the group label, empty without one.
        is_fitted: whether the costs are learned; otherwise they are configured.
        n_observations: observations in the fit, without forgotten ones.
        overhead_ms: milliseconds per request.
        queue_ms: milliseconds per uncached token of requests ahead.
        prefill_ms: milliseconds per uncached token of the request itself.
        load_ms: slower tier -> milliseconds per token loaded from it.
        credits: slower tier -> credit of a block there relative to the fastest tier, 0 to 1: the share of its compute
            time that loading saves.
        fit_error: mean of `abs(log(observed / predicted))` with learned costs.
        prior_error: the same with configured costs.
    """

    group: str
    is_fitted: bool
    n_observations: float
    overhead_ms: float
    queue_ms: float
    prefill_ms: float
    load_ms: Mapping[str, float]
    credits: Mapping[str, float]
    fit_error: float
    prior_error: float


class LatencyCostScorer:
    """Score `1 / (1 + ms / scale_ms)`, where ms is the expected time to first token.

    Ties: equal expected times score the same.

    Args:
        params: initial costs, and how they are learned.
        tiers: names of the configured tiers, fastest first.
    """

    type = "latency-cost-scorer"

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str]) -> None:
        self._params, self._tiers = params, tuple(tiers)
        prefill_ms = 1000.0 / params.prefill_tokens_per_second
        self._priors = (params.overhead_ms, prefill_ms, prefill_ms, *self._load_priors())
        self._fits: dict[str, LinearFit] = {}

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        """Return one rating per candidate; raw is the expected milliseconds to first token."""
        expected_ms = self.expected_ms(request, candidates)
        return Ratings(1.0 / (1.0 + expected_ms / self._params.scale_ms), Inputs(expected_ms))

    def expected_ms(self, request: RequestView, candidates: Candidates) -> FloatArray:
        """Return the expected milliseconds to first token by endpoint."""
        expected = np.zeros(len(candidates))
        quantities = features(request.n_tokens, candidates, n_tiers=len(self._tiers))
        for cost, quantity in zip(self._costs(candidates), quantities, strict=True):
            expected += cost * quantity
        return expected

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from an observed time; the expected waits are in the decision."""
        if not self._params.fit:
            return
        candidate = decision.best
        group = self._group(candidate.labels.get(self._params.group_label, ""))
        if group not in self._fits:
            self._fits[group] = LinearFit(
                self._priors,
                max_factor=self._params.max_factor,
                half_life=self._params.half_life_observations,
            )
        quantities = features(decision.n_tokens, Candidates.of([candidate]), n_tiers=len(self._tiers))
        self._fits[group].observe([float(each[0]) for each in quantities], ttft_s * 1000.0)

    def reports(self) -> list[LatencyReport]:
        """Return the costs of each group seen so far, in order of appearance."""
        return [self._report(group, fit) for group, fit in self._fits.items()]

    def _costs(self, candidates: Candidates) -> Iterable[FloatArray | float]:
        """Return the cost of each feature: one number, or one by endpoint if there are groups."""
        if not self._params.group_label:
            return self._costs_of("")
        labels = candidates.labelled(self._params.group_label)
        costs = np.array([self._costs_of(value or "") for value in labels.values])
        return costs.reshape(len(labels.values), len(self._priors))[labels.codes].T

    def _costs_of(self, label: str) -> Sequence[float]:
        fit = self._fits.get(self._group(label))
        return fit.coefficients if fit is not None else self._priors

    def _load_priors(self) -> list[float]:
        given, last = self._params.load_tokens_per_second, len(DEFAULT_LOAD_SPEEDS) - 1
        return [
            1000.0 / given.get(tier, DEFAULT_LOAD_SPEEDS[min(place, last)])
            for place, tier in enumerate(self._tiers[1:])
        ]

    def _group(self, label: str) -> str:
        group = label if self._params.group_label else ""
        return group if group in self._fits or len(self._fits) < MAX_GROUPS else ""

    def _report(self, group: str, fit: LinearFit) -> LatencyReport:
        state = fit.state()
        costs = state.coefficients
        load_ms = dict(zip(self._tiers[1:], costs[FIRST_LOAD:], strict=True))
        return LatencyReport(
            group=group,
            is_fitted=state.is_fitted,
            n_observations=state.n_observations,
            overhead_ms=costs[OVERHEAD],
            queue_ms=costs[QUEUE],
            prefill_ms=costs[PREFILL],
            load_ms=load_ms,
            credits={tier: min(1.0, max(0.0, 1.0 - ms / costs[PREFILL])) for tier, ms in load_ms.items()},
            fit_error=state.fit_error,
            prior_error=state.prior_error,
        )


def register(registry: Registry) -> None:
    """Register `latency-cost-scorer`."""
    registry.scorers.add(LatencyCostScorer.type, LatencyCostParams, _make)


def _make(params: LatencyCostParams, context: BuildContext) -> LatencyCostScorer:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    return LatencyCostScorer(params, context.tiers)
