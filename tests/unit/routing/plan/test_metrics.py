"""Metrics of what latency scorers have learned."""

from __future__ import annotations

import pytest

from kvatlas.routing.plan.metrics import latency_families
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.topology import LABELS
from kvatlas.scorers.filters.roles import ROLE_LABEL
from kvatlas.scorers.latency.cost import LatencyCostScorer
from kvatlas.scorers.latency.params import LatencyCostParams
from kvatlas.scorers.queue import QueueScorer
from support.candidates import endpoint
from support.joint import answer, scheduler, send
from support.rating import routed_to


def samples(profile: Profile) -> dict[tuple[str, ...], float]:
    return {
        (family.name.removeprefix("kvatlas_latency_"), *sample.labels.values()): sample.value
        for family in latency_families(profile)
        for sample in family.samples
    }


def test_configured_costs_are_in_force_until_something_was_observed() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(), ("gpu", "cpu"))
    profile = Profile([("queue", QueueScorer(), 1.0), ("latency", scorer, 1.0)], MaxScorePicker())

    assert samples(profile) == {
        ("costs_in_force", "latency", "", state): float(state == "few")
        for state in ("fixed", "few", "rejected", "learned")
    }


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
        "memory": 0.001,
        "adapter": 0.1,
        "load_cpu": 0.00001,
    }
    assert {key: each for key, each in found.items() if key[0] not in ("cost_seconds", "identified")} == {
        ("tier_credit", "latency", "a", "cpu"): 0.99,
        ("log_error", "latency", "a", "learned"): pytest.approx(0.0, abs=0.02),
        ("log_error", "latency", "a", "configured"): pytest.approx(0.0, abs=0.02),
        ("observations", "latency", "a"): 1.0,
        ("fitted", "latency", "a"): 0.0,
        ("mape", "latency", "a"): pytest.approx(0.0134, abs=0.001),
        ("costs_in_force", "latency", "a", "fixed"): 0.0,
        ("costs_in_force", "latency", "a", "few"): 1.0,
        ("costs_in_force", "latency", "a", "rejected"): 0.0,
        ("costs_in_force", "latency", "a", "learned"): 0.0,
    }


def test_part_of_a_cost_that_observations_tell_is_shown() -> None:
    scorer = LatencyCostScorer(LatencyCostParams(prefill_tokens_per_second=1000.0), ("gpu", "cpu"))
    profile = Profile([("latency", scorer, 1.0)], MaxScorePicker())
    for n_tokens in (1000, 4000) * 50:
        profile.answered(routed_to(endpoint(), n_tokens=n_tokens), ttft_s=n_tokens / 1000.0)

    found = samples(profile)

    identified = {key[-1]: each for key, each in found.items() if key[0] == "identified"}
    assert identified["prefill"] > 0.9
    assert identified["load_cpu"] == 0.0, "nothing was loaded"
    assert all(0.0 <= each <= 1.0 for each in identified.values())


def test_handler_shows_the_costs_of_pairs_and_the_speed_of_links() -> None:
    made = scheduler()
    fleet = [
        endpoint("d", in_flight=(500, 0), labels={ROLE_LABEL: "decode", LABELS[2]: "a"}),
        endpoint("p", labels={ROLE_LABEL: "prefill", LABELS[2]: "b"}),
    ]
    decision = send(made, fleet, n_tokens=5000)
    assert decision.stages
    answer(made, decision, ms=700.0, tpot_ms=20.0)

    found = {
        (family.name.removeprefix("kvatlas_"), *sample.labels.values()): sample.value
        for family in latency_families(made)
        for sample in family.samples
    }

    assert found["latency_observations", "joint-cost-handler/pairs", ""] == 1.0
    assert ("latency_observations", "joint-cost-handler", "") not in found, (
        "no server computed a prompt alone"
    )
    assert found["tpot_observations", "joint-cost-handler", ""] == 1.0
    assert found["latency_cost_seconds", "joint-cost-handler/pairs", "", "transfer"] == 0.001
    assert found["link_tokens_per_second", "b", "a"] == pytest.approx(100e9 / 8 / 262_144, rel=0.5)
    assert 0.5 < found["link_log_error", "b", "a"] < 1.0
    assert found["link_observations", "b", "a"] == 1.0
