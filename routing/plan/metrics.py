"""Prometheus metrics of the configuration in force, and of the costs that its latency scorers and predictors learned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics_core import Metric

from ...fleet.families import gauge
from ...scorers.core.scheduler import Deciding
from ...scorers.handlers.joint_cost import JointCostHandler
from ...scorers.latency.groups import FitReport
from ...scorers.latency.knowledge import CostState
from ...scorers.latency.links import LinkReport
from .cost_models import cost_models, joint_handler, known_costs

PAIRS = f"{JointCostHandler.type}/pairs"
"""Value of the label `scorer` for the times of pairs."""


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


def latency_families(profile: Deciding) -> Iterator[Metric]:
    """Yield costs, their errors and the implied credits of every group of endpoints. Cost: O(groups * tiers)."""
    models, handler = cost_models(profile), joint_handler(profile)
    joint = handler.model if handler is not None else None
    first = {name: model.ttft.reports() for name, model in models.items()}
    if joint is not None:
        first[PAIRS] = joint.pairs.reports()
    later = {name: model.tpot.reports() for name, model in models.items()}
    credit = gauge(
        "latency_tier_credit", "Part of computing a block that loading saves.", "scorer", "group", "tier"
    )
    for name, reports in first.items():
        for report in reports:
            for tier, worth in report.credits.items():
                credit.add_metric([name, report.group, tier], worth)
    yield credit
    yield from _fit_families("latency", "times to first token", first)
    yield from _fit_families("tpot", "times per output token", later)
    in_force = gauge(
        "latency_costs_in_force",
        "Which costs are in force, as the state that is 1.",
        "scorer",
        "group",
        "state",
    )
    for scorer, known in known_costs(profile):
        for state in CostState:
            in_force.add_metric([scorer, known.group, state.value], float(state is known.state))
    yield in_force
    yield from _link_families(joint.pairs.links.reports() if joint is not None else ())


def _link_families(reports: Iterable[LinkReport]) -> Iterator[Metric]:
    """Yield what is known of the links between prefill and decode servers."""
    speed = gauge(
        "link_tokens_per_second", "Tokens whose KV state a link transfers per second.", "sender", "receiver"
    )
    error = gauge("link_log_error", "Standard deviation of the logarithm of that.", "sender", "receiver")
    observed = gauge("link_observations", "Observed times that it rests on.", "sender", "receiver")
    for each in reports:
        labels = [place or "" for place in each.link]
        speed.add_metric(labels, each.tokens_per_second)
        error.add_metric(labels, each.error)
        observed.add_metric(labels, each.n_observations)
    yield from (speed, error, observed)


def _fit_families(prefix: str, what: str, found: Mapping[str, list[FitReport]]) -> Iterator[Metric]:
    """Yield the costs of some fits, by name of the plugin that has them."""
    cost = gauge(f"{prefix}_cost_seconds", f"Cost that predicts {what}.", "scorer", "group", "term")
    error = gauge(
        f"{prefix}_log_error", "Mean of abs(log(observed / predicted)).", "scorer", "group", "costs"
    )
    observed = gauge(f"{prefix}_observations", "Observed times a fit rests on.", "scorer", "group")
    fitted = gauge(
        f"{prefix}_fitted", "1 when learned costs are in force, 0 for configured ones.", "scorer", "group"
    )
    mape = gauge(
        f"{prefix}_mape",
        "Mean of abs(predicted / observed - 1) of predictions made when requests were sent.",
        "scorer",
        "group",
    )
    identified = gauge(
        f"{prefix}_identified",
        "Part of a cost that is known from observations, and not configured.",
        "scorer",
        "group",
        "term",
    )
    for name, reports in found.items():
        for report in reports:
            labels = [name, report.group]
            for term, ms in report.costs_ms.items():
                cost.add_metric([*labels, term], ms / 1000.0)
            for term, part in report.identified.items():
                identified.add_metric([*labels, term], part)
            error.add_metric([*labels, "learned"], report.fit_error)
            error.add_metric([*labels, "configured"], report.prior_error)
            observed.add_metric(labels, report.n_observations)
            fitted.add_metric(labels, float(report.is_fitted))
            mape.add_metric(labels, report.mape)
    yield from (cost, error, observed, fitted, mape, identified)
