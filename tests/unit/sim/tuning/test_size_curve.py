"""The curve of one replay equals the hit rates of replays with each size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvatlas.sim import hardware
from kvatlas.sim.replay.comparison import Case, Plan, curve_figure, replay_once
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import Policy
from kvatlas.sim.replay.simulation import Timing
from support.traces import TIMES, random_trace


@pytest.mark.parametrize("cpu_blocks", [0, 80, 150, 400])
def test_curve_of_one_replay_is_what_a_replay_with_that_size_finds(cpu_blocks: int) -> None:
    """Sessions stay on their server for all sizes; only generated blocks make a difference."""
    gib = cpu_blocks * 4 * hardware.QWEN3_32B.kv_bytes_per_token / hardware.GIB
    plan = Plan((random_trace(9, n_requests=300, concurrency=1),), Timing(), curve_gib=(gib,))
    bare = FleetSpec(servers=2, block_size=4, gpu_blocks=60, times=TIMES)
    policy = Policy("session-hash")

    found = replay_once(plan, Case(policy, bare, 0.0), 0)

    real = replay_once(plan, Case(policy, replace(bare, cpu_blocks=cpu_blocks), gib), 0)
    assert found[curve_figure(gib)] == pytest.approx(real["hitRate"], abs=0.03)
