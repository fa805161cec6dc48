"""Metrics of what latency scorers have learned."""

from __future__ import annotations

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

    assert samples(profile) == {
        ("cost_seconds", "latency", "a", "overhead"): 0.03,
        ("cost_seconds", "latency", "a", "queue"): 0.001,
        ("cost_seconds", "latency", "a", "prefill"): 0.001,
        ("cost_seconds", "latency", "a", "load_cpu"): 0.00001,
        ("tier_credit", "latency", "a", "cpu"): 0.99,
        ("log_error", "latency", "a", "learned"): 0.0,
        ("log_error", "latency", "a", "configured"): 0.0,
        ("observations", "latency", "a"): 1.0,
        ("fitted", "latency", "a"): 0.0,
    }
