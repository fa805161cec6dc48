"""`latency-cost-scorer`: prefers endpoints on which the first token is expected sooner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, field

from ..core.decision import Decision
from ..core.model import Candidate, Ratings, RequestView
from ..core.params import BuildContext, PluginParams
from ..core.rating_column import RatingColumn
from ..core.registry import Registry
from .features import FIRST_LOAD, OVERHEAD, PREFILL, QUEUE, features
from .fit import LinearFit

MAX_GROUPS = 64
"""Groups with coefficients of their own; endpoints of further ones share one."""

DEFAULT_LOAD_SPEEDS = (100_000.0, 20_000.0)
"""Tokens loaded in a second, by place behind the first tier, and the last for every further tier. The first is 26 GB/s
for a model of 256 KiB a token, a common speed of host memory; the second a fast shared file system."""

Positive = Annotated[float, Meta(gt=0)]


class LatencyCostParams(PluginParams, frozen=True):
    """Parameters of `latency-cost-scorer`; those of the costs are what the fit starts from."""

    overhead_ms: Positive = 30.0
    """Milliseconds of a request that finds everything cached and nobody ahead."""
    prefill_tokens_per_second: Positive = 15_928.0
    """Prompt tokens an endpoint computes in a second."""
    load_tokens_per_second: dict[str, Positive] = field(default_factory=dict[str, Positive])
    """Tokens an endpoint loads in a second, by the name of the slower tier; default 100000 for the second, 20000 beyond."""
    fit: bool = True
    """Whether the costs are learned from observed times to first token."""
    group_label: str = ""
    """Label whose value tells endpoints with costs of their own apart; empty: all endpoints have the same."""
    max_factor: Annotated[float, Meta(gt=1)] = 20.0
    """How many times larger or smaller a learned cost may get."""
    half_life_observations: Annotated[float, Meta(ge=50)] = 1000.0
    """Observed times after which one counts half."""
    scale_ms: Positive = 1000.0
    """Expected milliseconds that score 0.5."""


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """What one group of endpoints is believed to cost.

    Attributes:
        group: value of the group label, empty without.
        is_fitted: whether the costs are learned; else they are the configured ones.
        n_observations: observed times the fit rests on, forgotten ones left out.
        overhead_ms: milliseconds of every request.
        queue_ms: milliseconds an uncached token of requests ahead.
        prefill_ms: milliseconds an uncached token of the request itself.
        load_ms: slower tier -> milliseconds a token loaded from it.
        credits: slower tier -> what a block there is worth beside one in the fastest, 0 to 1: the part of computing it
            that loading saves.
        fit_error: mean of `abs(log(observed / predicted))` by learned costs.
        prior_error: the same by configured costs.
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
    """`1 / (1 + ms / scale_ms)`, where ms is the expected time to first token.

    Args:
        params: costs to begin with, and how they are learned.
        tiers: names of the configured tiers, fastest first.
    """

    type = "latency-cost-scorer"

    def __init__(self, params: LatencyCostParams, tiers: Sequence[str]) -> None:
        self._params, self._tiers = params, tuple(tiers)
        prefill_ms = 1000.0 / params.prefill_tokens_per_second
        self._priors = (params.overhead_ms, prefill_ms, prefill_ms, *self._load_priors())
        self._fits: dict[str, LinearFit] = {}

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        """One rating a candidate; raw is the expected milliseconds to first token."""
        scale_ms = self._params.scale_ms
        expected_ms = [self._expected_ms(request, candidate) for candidate in candidates]
        return RatingColumn([1.0 / (1.0 + ms / scale_ms) for ms in expected_ms], expected_ms)

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        """Learn from an observed time; where the request was expected to wait is told by the decision itself."""
        if not self._params.fit:
            return
        candidate = decision.best
        group = self._group(candidate)
        if group not in self._fits:
            self._fits[group] = LinearFit(
                self._priors,
                max_factor=self._params.max_factor,
                half_life=self._params.half_life_observations,
            )
        self._fits[group].observe(
            features(decision.n_tokens, candidate, n_tiers=len(self._tiers)), ttft_s * 1000.0
        )

    def reports(self) -> list[LatencyReport]:
        """What each group seen so far is believed to cost, in order of appearance."""
        return [self._report(group, fit) for group, fit in self._fits.items()]

    def _expected_ms(self, request: RequestView, candidate: Candidate) -> float:
        quantities = features(request.n_tokens, candidate, n_tiers=len(self._tiers))
        fit = self._fits.get(self._group(candidate))
        costs = fit.coefficients if fit is not None else self._priors
        return sum(map(float.__mul__, costs, quantities))

    def _load_priors(self) -> list[float]:
        given, last = self._params.load_tokens_per_second, len(DEFAULT_LOAD_SPEEDS) - 1
        return [
            1000.0 / given.get(tier, DEFAULT_LOAD_SPEEDS[min(place, last)])
            for place, tier in enumerate(self._tiers[1:])
        ]

    def _group(self, candidate: Candidate) -> str:
        label = self._params.group_label
        group = candidate.labels.get(label, "") if label else ""
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
    """Adds `latency-cost-scorer`."""
    registry.scorers.add(LatencyCostScorer.type, LatencyCostParams, _make)


def _make(params: LatencyCostParams, context: BuildContext) -> LatencyCostScorer:
    for tier in params.load_tokens_per_second:
        context.known_tier(tier, "loadTokensPerSecond")
    return LatencyCostScorer(params, context.tiers)
