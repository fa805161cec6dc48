"""Prometheus metrics of the configuration in force, and of the costs that its latency scorers learned."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import Metric

from ...fleet.families import gauge
from ...scorers.core.profile import Profile
from ...scorers.latency.cost import LatencyCostScorer, LatencyReport


class ConfigMetrics:
    """Counters of configurations that were loaded.

    Args:
        registry: shows them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._loads = Counter(
            "kvatlas_config_loads",
            "Configurations looked at, by where from and what came of it.",
            ["source", "outcome"],
            registry=registry,
        )
        self.generation = Gauge(
            "kvatlas_config_generation", "Generation of the configuration in force.", registry=registry
        )
        self.refused = Gauge(
            "kvatlas_config_refused", "Files whose present content is not in force.", registry=registry
        )

    def loaded(self, source: str, outcome: str) -> None:
        """Count a configuration that was applied, unchanged or refused."""
        self._loads.labels(source, outcome).inc()


def latency_families(profile: Profile) -> Iterator[Metric]:
    """Yield costs, their errors and the implied credits of every group of endpoints. Cost: O(groups * tiers)."""
    cost = gauge(
        "latency_cost_seconds", "Cost that predicts times to first token.", "scorer", "group", "term"
    )
    credit = gauge(
        "latency_tier_credit", "Part of computing a block that loading saves.", "scorer", "group", "tier"
    )
    error = gauge("latency_log_error", "Mean of abs(log(observed / predicted)).", "scorer", "group", "costs")
    observed = gauge("latency_observations", "Observed times a fit rests on.", "scorer", "group")
    fitted = gauge(
        "latency_fitted", "1 when learned costs are in force, 0 for configured ones.", "scorer", "group"
    )
    for name, scorer, _ in profile.scorers:
        for report in scorer.reports() if isinstance(scorer, LatencyCostScorer) else ():
            labels = [name, report.group]
            for term, ms in _terms(report).items():
                cost.add_metric([*labels, term], ms / 1000.0)
            for tier, worth in report.credits.items():
                credit.add_metric([*labels, tier], worth)
            error.add_metric([*labels, "learned"], report.fit_error)
            error.add_metric([*labels, "configured"], report.prior_error)
            observed.add_metric(labels, report.n_observations)
            fitted.add_metric(labels, float(report.is_fitted))
    yield from (cost, credit, error, observed, fitted)


def _terms(report: LatencyReport) -> dict[str, float]:
    terms = {"overhead": report.overhead_ms, "queue": report.queue_ms, "prefill": report.prefill_ms}
    return terms | {f"load_{tier}": ms for tier, ms in report.load_ms.items()}
