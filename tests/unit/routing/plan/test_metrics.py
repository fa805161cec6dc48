"""Metrics of what latency scorers have learned."""

from __future__ import annotations

import pytest

from kvatlas.routing.plan.metrics import latency_families
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.latency.cost import LatencyCostScorer
from kvatlas.scorers.latency.params import LatencyCostParams
from kvatlas.scorers.queue import QueueScorer
from support.candidates import endpoint
from support.rating import routed_to


def samples(profile: Profile) -> dict[tuple[str, ...], float]:
    return {
        (family.name.removeprefix("kvatlas_latency_"), *sample.labels.values()): sample.value
        for family in latency_families(profile)
        for sample in family.samples
    }


def test_families_are_empty_until_something_was_observed() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(), ("gpu", "cpu"))
    profile = Profile([("queue", QueueScorer(), 1.0), ("latency", scorer, 1.0)], MaxScorePicker())

    assert samples(profile) == {}


def test_every_group_shows_its_costs_in_seconds_its_credits_and_its_errors() -> None:
    scorer = LatencyCostScorer(
        LatencyCostParams(prefill_tokens_per_second=1000.0, group_label="zone"), ("gpu", "cpu")
    )
    profile = Profile([("latency", scorer, 1.0)], MaxScorePicker())
    candidate = endpoint(labels={"zone": "a"})
    decision = routed_to(candidate, n_tokens=970)

    profile.answered(decision, ttft_s=1.0)

    found = samples(profile)
    assert {key[-1]: found[key] for key in found if key[0] == "cost_seconds"} == {
        "overhead": 0.03,
        "queue": 0.001,
        "prefill": 0.001,
        "attention": pytest.approx(0.001 * 1e6 / 35_000),
        "batch": 0.0005,
        "memory": 0.0005,
        "adapter": 0.1,
        "load_cpu": 0.00001,
    }
    assert {key: each for key, each in found.items() if key[0] != "cost_seconds"} == {
        ("tier_credit", "latency", "a", "cpu"): 0.99,
        ("log_error", "latency", "a", "learned"): pytest.approx(0.0, abs=0.02),
        ("log_error", "latency", "a", "configured"): pytest.approx(0.0, abs=0.02),
        ("observations", "latency", "a"): 1.0,
        ("fitted", "latency", "a"): 0.0,
        ("mape", "latency", "a"): pytest.approx(0.0134, abs=0.001),
    }
