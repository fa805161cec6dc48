"""Replicas on a virtual clock beside one picker."""

from __future__ import annotations

import pytest

from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import replica_configs
from kvatlas.sim.replay.replica_network import Sharing
from kvatlas.sim.replay.replicated import replay_replicas
from kvatlas.sim.traces.shared_prefix import SharedPrefixSpec, shared_prefix_trace

FLEET = FleetSpec(servers=4, cpu_blocks=4000).coarser(8)
TRACE = shared_prefix_trace(
    SharedPrefixSpec(
        num_groups=12,
        num_prompts_per_group=6,
        system_prompt_len=4000,
        question_len=500,
        output_len=50,
        rate=20.0,
    ),
    seed=1,
)


@pytest.mark.parametrize("policy", ["weights", "approximate"])
def test_replicas_pick_as_one_when_all_is_shared(policy: str) -> None:
    config = replica_configs(FLEET)[policy]
    alone = replay_replicas(TRACE, FLEET, config, Sharing(frozenset()), replicas=1)

    together = replay_replicas(TRACE, FLEET, config, Sharing(delay_s=0.005), replicas=3)

    assert together.agreement.picks == alone.agreement.picks == len(TRACE.requests)
    assert together.agreement.share >= 0.99
    assert together.figures["hitRate"] == pytest.approx(alone.figures["hitRate"], abs=0.01)
    assert together.messages > 0


def test_replicas_pick_otherwise_when_nothing_is_shared() -> None:
    config = replica_configs(FLEET)["approximate"]
    found = replay_replicas(TRACE, FLEET, config, Sharing(frozenset()), replicas=3)
    assert found.agreement.share < 0.9
    assert found.messages == 0


def test_lost_messages_are_made_good() -> None:
    config = replica_configs(FLEET)["approximate"]
    found = replay_replicas(TRACE, FLEET, config, Sharing(delay_s=0.005, loss=0.05), replicas=3)
    assert found.agreement.share >= 0.95


@pytest.mark.parametrize("replicas", [2, 3])
def test_learned_costs_are_shared(replicas: int) -> None:
    config = replica_configs(FLEET)["latency"]
    alone = replay_replicas(TRACE, FLEET, config, Sharing(frozenset()), replicas=1)

    together = replay_replicas(TRACE, FLEET, config, Sharing(delay_s=0.0, batch_s=0.0), replicas=replicas)

    assert together.agreement.share == 1.0
    assert together.figures["ttftMean"] == pytest.approx(alone.figures["ttftMean"], rel=0.01)


def test_chance_decides_otherwise_by_its_name() -> None:
    config = replica_configs(FLEET)["weights"]
    first, again, other = (
        replay_replicas(TRACE, FLEET, config, Sharing(frozenset()), replicas=1, chance=chance).figures
        for chance in ("", "", "other")
    )
    assert first == again
    assert first != other
