"""The doctor's check of latency costs, from the process's own metrics."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry, Gauge

from kvatlas.api.doctor.check import State
from kvatlas.api.doctor.checks import CHECKS
from kvatlas.api.doctor.deployment import Counts, Deployment
from kvatlas.configs.schema import KVAtlasConfig

(CHECK,) = (each for each in CHECKS if each.name == "costs-learned")


def deployment(figures: Mapping[str, float], *states: str) -> Deployment:
    registry = CollectorRegistry()
    for name, value in figures.items():
        Gauge(name, name, registry=registry).set(value)
    in_force = Gauge("kvatlas_latency_costs_in_force", "s", ["state"], registry=registry)
    for state in states:
        in_force.labels(state).set(1.0)
    return Deployment(KVAtlasConfig(api_version="kvatlas/v1"), counts=Counts(registry))


@pytest.mark.parametrize(
    ("figures", "state", "expected", "evidence"),
    [
        pytest.param({}, None, State.OK, "no cost model", id="weights"),
        pytest.param({}, "few", State.UNKNOWN, "configured costs, since fewer than 30", id="cold"),
        pytest.param({"kvatlas_picks_total": 20.0}, "few", State.WARN, "0 times known", id="blind"),
        pytest.param(
            {"kvatlas_picks_total": 20.0, "kvatlas_latency_observations": 12.0},
            "few", State.UNKNOWN, "12 times known", id="few",
        ),
        pytest.param(
            {"kvatlas_latency_observations": 100.0, "kvatlas_latency_mape": 0.12},
            "learned", State.OK, "learned costs in 1 group of servers; 100 times known, predictions off by at most 12%",
            id="learned",
        ),
    ],
)  # fmt: skip
def test_costs_in_force_are_reported(
    figures: Mapping[str, float], state: str | None, expected: State, evidence: str
) -> None:
    (found,) = CHECK.look(deployment(figures, *([state] if state is not None else [])))

    assert found.state is expected
    assert evidence in found.evidence
    assert ("response_body_mode" in found.remedy) is (expected is State.WARN)


def test_remedy_belongs_to_the_group_without_times_alone() -> None:
    found = CHECK.look(deployment({"kvatlas_picks_total": 20.0}, "few", "fixed"))

    assert [(each.state, bool(each.remedy)) for each in found] == [(State.WARN, True), (State.OK, False)]
