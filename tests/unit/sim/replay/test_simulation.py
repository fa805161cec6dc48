"""A replay serves each request once, finds no more than an infinite cache, and is reproducible with the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.scorers.core.model import Load
from kvatlas.sim.replay.fleet_spec import FleetSpec
from kvatlas.sim.replay.policies import POLICIES, Policy, make_router
from kvatlas.sim.replay.router import BlindRouter, RouteRequest
from kvatlas.sim.replay.simulation import Replay, Replayed, Served, Timing
from kvatlas.sim.traces.trace import Trace
from support.traces import BLOCK, make_fleet, make_trace, random_trace

TIMING = Timing(scrape_s=0.25)


def play(
    trace: Trace, fleet: FleetSpec, policy: str = "precise", *, seed: int = 1, timing: Timing = TIMING
) -> Replayed:
    router = make_router(Policy(policy), fleet, granularity=1, rng=Random(seed))
    return Replay(trace, fleet, router, timing=timing, rng=Random(seed)).run()


def infinite_cache_tokens(trace: Trace) -> int:
    """Count the prompt tokens that an infinite cache would find if each request were served at its arrival."""
    seen: set[tuple[int, ...]] = set()
    found = 0
    for request in trace.requests:
        n_full = request.n_prompt // BLOCK
        known = [tuple(request.ids[: n + 1]) in seen for n in range(n_full)]
        found += BLOCK * (known.index(False) if False in known else n_full)
        seen.update(tuple(request.ids[: n + 1]) for n in range(n_full))
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_every_request_once_and_the_same_way_again(policy: str) -> None:
    trace, fleet = random_trace(3), make_fleet(servers=3, has_storage=True)

    one, again = play(trace, fleet, policy), play(trace, fleet, policy)

    assert sorted(each.number for each in one.served) == list(range(len(trace.requests)))
    assert (one.served, one.counters, one.refused) == (again.served, again.counters, 0)
    assert {each.server for each in one.served} == set(fleet.names)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    servers=st.integers(1, 3),
    cpu_blocks=st.sampled_from([0, 10, 400]),
    has_storage=st.booleans(),
    concurrency=st.sampled_from([None, 1, 4]),
)
def test_tokens_are_conserved_and_hits_stay_below_those_of_an_infinite_cache(
    seed: int, servers: int, cpu_blocks: int, has_storage: bool, concurrency: int | None
) -> None:
    trace = random_trace(seed, n_requests=30, concurrency=concurrency)
    fleet = make_fleet(servers=servers, cpu_blocks=cpu_blocks, has_storage=has_storage and cpu_blocks > 0)

    replayed = play(trace, fleet)

    for each in replayed.served:
        request = trace.requests[each.number]
        assert (each.n_prompt, each.n_output) == (request.n_prompt, request.n_output)
        assert each.came_at < each.begun_at <= each.ended_at
        assert min(each.gpu_tokens, each.cpu_tokens, each.storage_tokens) >= 0
    found = Counter[str]()
    for each in replayed.served:
        found.update(gpu=each.gpu_tokens, cpu=each.cpu_tokens, storage=each.storage_tokens)
    assert found["gpu"] == sum(each.gpu_hits for each in replayed.counters)
    assert found["cpu"] == sum(each.cpu_hits for each in replayed.counters)
    assert found["storage"] == sum(each.storage_hits for each in replayed.counters)
    assert sum(each.generated_tokens for each in replayed.counters) == sum(r.n_output for r in trace.requests)
    if concurrency != 1:  # concurrent requests may overtake each other
        return
    assert found.total() <= infinite_cache_tokens(trace)


def test_one_server_of_no_bounds_finds_what_an_infinite_cache_finds() -> None:
    trace = random_trace(7, concurrency=1)

    replayed = play(trace, make_fleet(servers=1, gpu_blocks=10_000))

    # except the last token of a prompt, which is always computed
    lost = sum(each.n_prompt % BLOCK == 0 for each in replayed.served) * BLOCK
    found = sum(each.gpu_tokens for each in replayed.served)
    assert infinite_cache_tokens(trace) - lost <= found <= infinite_cache_tokens(trace)
    assert found > 0


def test_closed_loop_never_has_more_requests_under_way() -> None:
    replayed = play(random_trace(2, concurrency=3), make_fleet())

    came = [(each.came_at, 1) for each in replayed.served] + [(each.ended_at, -1) for each in replayed.served]
    under_way = [0]
    for _at, change in sorted(came):
        under_way.append(under_way[-1] + change)
    assert max(under_way) == 3


def test_times_are_those_of_the_cost_model() -> None:
    trace = make_trace((0.0, 6, (1, 2)), output=3)

    (served,) = play(trace, make_fleet(servers=1)).served

    step = 1 / 64
    assert served.ttft_s == step + 6 / 64 + 15 / 8192
    assert served.total_s == served.ttft_s + 2 * step + (7 + 8) / 4096


class Watching(BlindRouter):
    """Router that uses one server and records the given loads."""

    def __init__(self) -> None:
        self.seen: list[Load] = []

    def route(self, request: RouteRequest) -> str:
        self.seen.append(request.loads["server-0"])
        return "server-0"


def test_loads_are_as_old_as_the_last_scrape() -> None:
    trace = make_trace((0.0, 8, (1, 2)), (0.3, 8, (3, 4)), (0.4, 8, (5, 6)), (0.51, 8, (7, 8)), output=200)
    router = Watching()

    Replay(trace, make_fleet(gpu_blocks=400), router, timing=TIMING, rng=Random(1)).run()

    assert [(load.updated_at, load.running) for load in router.seen] == [
        (0.0, 0),
        (0.25, 1),
        (0.25, 1),
        (0.5, 2),
    ]


def test_request_that_no_engine_can_hold_is_refused_and_the_rest_goes_on() -> None:
    trace = make_trace((0.0, 8, (1, 2)), (1.0, 400, tuple(range(100))), (2.0, 8, (1, 2)), concurrency=1)

    replayed = play(trace, make_fleet())

    assert ([each.number for each in replayed.served], replayed.refused) == ([0, 2], 1)


class Refusing(BlindRouter):
    """Router that rejects every second request."""

    def route(self, request: RouteRequest) -> str | None:
        return "server-0" if request.number % 2 else None


def test_request_that_the_router_refuses_is_counted() -> None:
    trace = random_trace(1, n_requests=10)
    progress: list[None] = []

    replayed = Replay(
        trace, make_fleet(), Refusing(), timing=TIMING, rng=Random(1), progress=lambda: progress.append(None)
    ).run()

    assert (len(replayed.served), replayed.refused, len(progress)) == (5, 5, 10)


def test_conversation_waits_for_its_answer() -> None:
    trace = make_trace((0.0, 8, (1, 2)), (0.5, 16, (1, 2, 3, 4)))
    waits = Trace("waits", BLOCK, [trace.requests[0], replace(trace.requests[1], after=0)])

    first, second = play(waits, make_fleet()).served

    assert second.came_at == first.ended_at + 0.5
    assert (second.gpu_tokens, second.server) == (8, first.server)


def test_served_times_are_differences() -> None:
    served = Served(0, "a", came_at=1.0, begun_at=1.5, ended_at=3.0)

    assert (served.ttft_s, served.total_s) == (0.5, 2.0)
