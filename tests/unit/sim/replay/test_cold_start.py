"""The first requests under `latency`, on servers of another speed than its configured costs say, beside 2:2:1:1."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import msgspec
import pytest

from kvatlas.sim.replay.comparison import Case, Plan, replay_served
from kvatlas.sim.replay.policies import named_policy
from kvatlas.sim.replay.simulation import Timing
from kvatlas.sim.traces.agents import agents_trace
from kvatlas.sim.workloads import AGENTS, WITH_CPU

N_FIRST = 100


def mean_ttft_s(policy: str, *, slower: float, load: float) -> float:
    """Return the mean time to first token of the first requests, on servers that compute prompts so much slower."""
    times = WITH_CPU.times
    slow = replace(
        times,
        prefill_s_per_token=times.prefill_s_per_token * slower,
        attention_s_per_pair=times.attention_s_per_pair * slower,
    )
    trace = agents_trace(msgspec.structs.replace(AGENTS, agents=20, turns=6, starts_per_s=load), seed=2)
    case = Case(named_policy(policy), replace(WITH_CPU, times=slow), 0.0)
    served = replay_served(Plan((trace,), Timing(), 32), case, 0).served
    return fmean(each.ttft_s for each in sorted(served, key=lambda each: each.came_at)[:N_FIRST])


@pytest.mark.parametrize(
    ("slower", "load", "most"), [(10.0, 0.1, 1.0), (0.2, 1.0, 1.2)], ids=["tenth", "five_times"]
)
def test_first_requests_on_servers_of_another_speed(slower: float, load: float, most: float) -> None:
    ours, weights = (mean_ttft_s(policy, slower=slower, load=load) for policy in ("latency", "precise"))

    assert ours <= most * weights
