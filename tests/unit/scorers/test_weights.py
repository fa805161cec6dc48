"""The default profile: names, weights, tiers."""

from __future__ import annotations

import pytest

from kvatlas.configs.schema import WeightsConfig
from kvatlas.scorers.core.model import Candidate, Load, RequestView
from kvatlas.scorers.weights import default_profile
from support.matches import prefix_match
from support.rating import decide

REQUEST = RequestView(model="m", now=1.0, n_tokens=160)


def endpoint(name: str, *, waiting: int = 0, gpu: int = 0, cpu: int = 0) -> Candidate:
    return Candidate(
        name=name,
        address=f"{name}:8000",
        load=Load(waiting=waiting, running=0, kv_utilization=0.5, updated_at=1.0),
        prefix=prefix_match({"gpu": gpu, "cpu": cpu}),
    )


def no_chance() -> float:
    return 0.0


def test_default_profile_has_the_published_names_and_weights() -> None:
    profile = default_profile(WeightsConfig(), tiers=["gpu", "cpu", "storage"])

    decision = decide(profile, REQUEST, [endpoint("a")], rng=no_chance)

    assert [(term.name, term.type, term.weight) for term in decision.scored[0].terms] == [
        ("queue-scorer", "queue-scorer", 2),
        ("kv-cache-utilization-scorer", "kv-cache-utilization-scorer", 2),
        ("gpu-prefix-cache-scorer", "prefix-cache-scorer", 1),
        ("cpu-prefix-cache-scorer", "prefix-cache-scorer", 1),
    ]


def test_default_profile_gives_a_gpu_hit_two_and_a_cpu_only_hit_one() -> None:
    profile = default_profile(WeightsConfig(), tiers=["gpu", "cpu"])
    fleet = [endpoint("cold"), endpoint("cpu-only", cpu=10), endpoint("gpu-and-cpu", gpu=10, cpu=10)]

    cold, cpu_only, both = decide(profile, REQUEST, fleet, rng=no_chance).scored

    assert (cpu_only.total - cold.total, both.total - cold.total) == (1.0, 2.0)


def test_default_profile_takes_its_own_weights() -> None:
    weights = WeightsConfig(queue=5, kv_cache_utilization=0, gpu_prefix_cache=0.5, cpu_prefix_cache=0)

    decision = decide(
        default_profile(weights, tiers=["gpu", "cpu"]), REQUEST, [endpoint("a", gpu=10)], rng=no_chance
    )

    assert decision.scored[0].total == 5 * 1.0 + 0.5 * 1.0


@pytest.mark.parametrize(
    ("tiers", "products"),
    [
        pytest.param(["gpu", "cpu"], (0.3, 0.8), id="by_position"),
        pytest.param(["cpu", "gpu"], (0.8, 0.3), id="first_tier_whatever_its_name"),
        pytest.param(["gpu"], (0.3, 0.0), id="one_tier"),
        pytest.param(["cpu"], (0.8, 0.0), id="one_tier_is_never_counted_twice"),
    ],
)
def test_prefix_scorers_read_the_first_two_tiers(tiers: list[str], products: tuple[float, float]) -> None:
    decision = decide(
        default_profile(WeightsConfig(), tiers=tiers), REQUEST, [endpoint("a", gpu=3, cpu=8)], rng=no_chance
    )

    assert tuple(term.product for term in decision.scored[0].terms[2:]) == products


def test_unknown_load_does_not_look_idle() -> None:
    seen = endpoint("seen", waiting=50)
    unseen = Candidate(name="unseen", address="unseen:8000", prefix=seen.prefix)

    decision = decide(default_profile(WeightsConfig(), tiers=["gpu"]), REQUEST, [unseen, seen], rng=no_chance)

    assert decision.picked == ("seen",)
