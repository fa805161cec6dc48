"""How well the cost model predicts: each time is predicted when the request is sent, and compared when it is observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from ...configs.schema import DEFAULT_TIERS, KVAtlasConfig, WeightsConfig
from ...indexer.factory import index_core
from ...scorers.core.base import Scorer
from ...scorers.core.decision import Decision
from ...scorers.core.max_score import MaxScorePicker
from ...scorers.core.profile import Profile
from ...scorers.latency.fleet_cost import FleetCostParams, FleetCostScorer
from ...scorers.weights import default_profile
from ..traces.trace import Trace
from .fleet_spec import FleetSpec
from .indexed_router import IndexedRouter
from .simulation import Replay, Timing

MIN_OUTPUT = 2
"""Fewest output tokens of a response that has a time per output token."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """One prediction in milliseconds, and what was observed."""

    endpoint: str
    expected_ms: float
    observed_ms: float

    @property
    def error(self) -> float:
        """Absolute error relative to the observed time."""
        return abs(self.expected_ms / self.observed_ms - 1.0)


@dataclass(frozen=True, slots=True)
class PredictionLog:
    """Predictions in the order in which they were observed."""

    ttft: list[Predicted] = field(default_factory=list[Predicted])
    tpot: list[Predicted] = field(default_factory=list[Predicted])


def mape(predictions: Sequence[Predicted], *, after: int = 0) -> float:
    """Return the mean absolute relative error of all but the first `after` predictions; 0 without any."""
    counted = predictions[after:]
    return sum(each.error for each in counted) / max(1, len(counted))


class _Logged(FleetCostScorer):
    """`fleet-cost-scorer` that writes down what it predicted before it learns."""

    def __init__(self, params: FleetCostParams, tiers: Sequence[str]) -> None:
        super().__init__(params, tiers)
        self.log = PredictionLog()

    def answered(self, decision: Decision, *, ttft_s: float) -> None:
        found = self.model.prediction(decision)
        if found is not None:
            self.log.ttft.append(Predicted(decision.picked[0], found[0], ttft_s * 1000.0))
        super().answered(decision, ttft_s=ttft_s)

    def ended(self, decision: Decision, *, tpot_s: float | None) -> None:
        found = self.model.prediction(decision)
        if found is not None and tpot_s is not None:
            self.log.tpot.append(Predicted(decision.picked[0], found[1], tpot_s * 1000.0))
        super().ended(decision, tpot_s=tpot_s)


def prediction_log(
    trace: Trace,
    fleet: FleetSpec,
    *,
    group_label: str = "",
    weights: WeightsConfig | None = None,
    granularity: int = 1,
    seed: int = 1,
) -> PredictionLog:
    """Replay a trace, and return the predictions of `fleet-cost-scorer`.

    Args:
        trace: the requests.
        fleet: the servers.
        group_label: label by which costs are learned apart, such as `speed`; empty: paces are learned.
        weights: route by these, and predict only; None routes as `policy: latency`.
        granularity: blocks that are simulated as one.
        seed: of ties and of the jitter.
    """
    coarse = fleet.coarser(granularity)
    tiers = DEFAULT_TIERS[: 2 if fleet.cpu_blocks else 1]
    names = [tier.name for tier in tiers]
    scorer = _Logged(FleetCostParams(group_label=group_label), names)
    scorers: list[tuple[str, Scorer, float]] = [(scorer.type, scorer, 1.0)]
    if weights is not None:
        scorers = [*default_profile(weights, tiers=names).scorers, (scorer.type, scorer, 0.0)]
    router = IndexedRouter(
        KVAtlasConfig(api_version="kvatlas/v1", tiers=tiers),
        coarse,
        core=index_core(),
        rng=Random(f"router {seed}"),
        profile=Profile(scorers, MaxScorePicker()),
    )
    Replay(trace, coarse, router, timing=Timing(), rng=Random(f"arrivals {seed}")).run()
    return scorer.log
