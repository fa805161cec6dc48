"""No policy beats the bound, in any trace; alone on a fleet with cached prefixes, a request reaches it."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.sim.replay.bound import Bound, bound, bound_figures
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import POLICIES, Policy, make_router
from kvatlas.sim.replay.simulation import Replay, Replayed, Timing
from kvatlas.sim.traces.agents import AgentsSpec, agents_trace
from kvatlas.sim.traces.trace import Trace
from support.traces import BLOCK, make_fleet, make_trace, random_trace

TIMING = Timing(speed=2.0, jitter_s=0.5, scrape_s=0.25)
CLOSE = 1e-9
"""Relative error of sums of many steps."""

AGENTS = AgentsSpec(
    agents=6,
    turns=4,
    tool_sets=2,
    system_len=12,
    turn_len=6,
    output_len=5,
    think_s=1.0,
    starts_per_s=2.0,
    block_size=BLOCK,
)


def play(trace: Trace, fleet: FleetSpec, policy: str) -> Replayed:
    router = make_router(Policy(policy), fleet, granularity=1, rng=Random(2))
    return Replay(trace, fleet, router, timing=TIMING, rng=Random(1)).run()


def bound_of(trace: Trace, fleet: FleetSpec) -> Bound:
    return bound(trace, fleet, timing=TIMING, rng=Random(1))


@settings(max_examples=60)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    seed=st.integers(0, 1000),
    servers=st.integers(1, 3),
    cpu_blocks=st.sampled_from([0, 30, 400]),
    has_storage=st.booleans(),
    speeds=st.sampled_from([(1.0,), (0.5, 2.0), (1.0, 0.25)]),
    kind=st.sampled_from(["open", "closed", "agents"]),
)
def test_no_policy_beats_the_bound(
    policy: str,
    seed: int,
    servers: int,
    cpu_blocks: int,
    has_storage: bool,
    speeds: tuple[float, ...],
    kind: str,
) -> None:
    fleet = make_fleet(
        servers=servers, cpu_blocks=cpu_blocks, has_storage=has_storage and cpu_blocks > 0, speeds=speeds
    )
    if kind == "agents":
        trace = agents_trace(AGENTS, seed=seed)
    else:
        trace = random_trace(seed, n_requests=25, concurrency=3 if kind == "closed" else None)

    served = play(trace, fleet, policy).served
    found = bound_of(trace, fleet)

    assert sorted(found.alone_s) == sorted(each.number for each in served)
    for each in served:
        assert each.ttft_s >= found.alone_s[each.number] * (1 - CLOSE)
    assert fmean(each.ttft_s for each in served) >= found.mean_s * (1 - CLOSE)
    n_found = sum(each.gpu_tokens + each.cpu_tokens + each.storage_tokens for each in served)
    assert n_found / sum(each.n_prompt for each in served) <= found.hit_rate + CLOSE


@pytest.mark.parametrize("n_prompt", [1, 3, 9, 39])
def test_bound_is_reached_by_a_request_alone(n_prompt: int) -> None:
    trace = make_trace((0.0, n_prompt, tuple(range(10))), (900.0, n_prompt, tuple(range(10))))
    fleet = make_fleet(servers=1, max_num_batched_tokens=16)

    served = play(trace, fleet, "round-robin").served
    found = bound_of(trace, fleet)

    assert [each.ttft_s for each in served] == pytest.approx(list(found.alone_s.values()), abs=1e-6)
    assert found.mean_s == pytest.approx(fmean(each.ttft_s for each in served), abs=1e-6)


def test_bound_of_a_burst_counts_the_requests_that_have_to_wait() -> None:
    ids = [tuple(range(100 * number, 100 * number + 8)) for number in range(12)]
    trace = make_trace(*((0.0, 32, each) for each in ids))

    one, many = (bound(trace, make_fleet(servers=n), timing=Timing(), rng=Random(1)) for n in (1, 12))

    assert many.mean_s == pytest.approx(fmean(many.alone_s.values()))
    assert one.mean_s > 6 * many.mean_s


def test_bound_counts_neither_the_first_requests_nor_those_that_fit_no_engine() -> None:
    trace = make_trace((0.0, 8, (1, 2)), (1.0, 400, tuple(range(10, 110))), (2.0, 8, (3, 4)))

    found = bound(trace, make_fleet(), timing=Timing(), rng=Random(1), warm_up=1)

    assert list(found.alone_s) == [2]
    assert bound_figures(found)["ttftP99"] == found.alone_s[2] == found.mean_s
    assert found.hit_rate == 0
