"""A system prompt that all requests share: every server gets it, and none is left idle beside a crowded one."""

from __future__ import annotations

from collections import Counter

import pytest

from kvatlas.sim.replay.comparison import Case, Plan, replay_served
from kvatlas.sim.replay.policies import named_policy
from kvatlas.sim.replay.simulation import Timing
from kvatlas.sim.workloads import select, workloads


@pytest.mark.parametrize("load", [20.0, 40.0])
def test_every_server_takes_its_share_of_one_prompt(load: float) -> None:
    (workload,) = select(workloads(), ["one-prompt/gpu"])
    plan = Plan((workload.make(load, 1),), Timing(), workload.granularity)

    served = replay_served(plan, Case(named_policy("latency"), workload.fleet, 0.0), 0).served
    shares = Counter(each.server for each in served)

    even = len(served) / workload.fleet.servers
    assert len(shares) == workload.fleet.servers
    assert max(shares.values()) < 1.5 * even
    assert min(shares.values()) > even / 1.5
