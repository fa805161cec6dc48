"""Reuse distances give the hit rates that caches of each size really have."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.sim import hardware
from kvatlas.sim.replay.comparison import Case, Plan, curve_figure, replay_once
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import Policy
from kvatlas.sim.replay.simulation import Timing
from kvatlas.sim.tuning.reuse_distance import ReuseDistances
from support.traces import TIMES, random_trace

prompts = st.lists(
    st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True), min_size=1, max_size=40
)


def brute_force(uses: list[list[int]], capacity: int) -> int:
    """Blocks found by an LRU cache that looks a prompt up at once, then takes it in from its end."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = 0
    for keys in uses:
        found += sum(key in cache for key in keys)
        for key in reversed(keys):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return found


@given(uses=prompts)
def test_distances_give_the_hits_of_every_lru_cache_exactly(uses: list[list[int]]) -> None:
    distances = ReuseDistances()
    for keys in uses:
        distances.use(keys)

    n_uses = sum(map(len, uses))
    for capacity in range(34):
        assert distances.hit_rate(capacity) * n_uses == pytest.approx(brute_force(uses, capacity))
    assert distances.rate == 1.0


def skewed_uses(n_prompts: int) -> list[list[int]]:
    """Prompts that go on from one of 300 openings, some much hotter than others."""
    rng = Random(4)
    fresh = iter(range(1_000_000, 10_000_000))
    return [
        [100 * int(rng.paretovariate(0.6)) % 300 * 1000 + block for block in range(rng.randint(5, 40))]
        + [next(fresh) for _ in range(10)]
        for _ in range(n_prompts)
    ]


@pytest.mark.parametrize("max_keys", [500, 2000])
def test_sample_of_bounded_size_is_near_brute_force(max_keys: int) -> None:
    uses = skewed_uses(4000)
    distances = ReuseDistances(max_keys=max_keys)
    for keys in uses:
        distances.use(keys)

    n_uses = sum(map(len, uses))
    assert distances.rate < 0.1 * max_keys / 500
    for capacity in (300, 1000, 3000, 10_000):
        assert distances.hit_rate(capacity) == pytest.approx(brute_force(uses, capacity) / n_uses, abs=0.05)


def test_nothing_used_finds_nothing() -> None:
    assert ReuseDistances().hit_rate(100) == 0.0


@pytest.mark.parametrize("cpu_blocks", [0, 80, 150, 400])
def test_curve_of_one_replay_is_what_a_replay_with_that_size_finds(cpu_blocks: int) -> None:
    """Sessions stay on their server whatever the size; only what was generated makes a difference."""
    gib = cpu_blocks * 4 * hardware.QWEN3_32B.kv_bytes_per_token / hardware.GIB
    plan = Plan((random_trace(9, n_requests=300, concurrency=1),), Timing(), curve_gib=(gib,))
    bare = FleetSpec(servers=2, block_size=4, gpu_blocks=60, times=TIMES)
    policy = Policy("session-hash")

    found = replay_once(plan, Case(policy, bare, 0.0), 0)

    real = replay_once(plan, Case(policy, replace(bare, cpu_blocks=cpu_blocks), gib), 0)
    assert found[curve_figure(gib)] == pytest.approx(real["hitRate"], abs=0.03)
