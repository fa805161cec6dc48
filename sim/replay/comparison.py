"""Several replays of one trace: every policy on every fleet, with several seeds."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

import msgspec

from ..traces.trace import Trace
from .figures import Estimate, estimate, figures
from .fleet_spec import FleetSpec
from .policies import Policy, make_router
from .simulation import Replay, Timing


@dataclass(frozen=True, slots=True)
class Case:
    """One policy on one fleet.

    Attributes:
        policy: how requests are routed.
        fleet: the engines.
        cpu_gib: their CPU tiers' size in GiB, for reports.
    """

    policy: Policy
    fleet: FleetSpec
    cpu_gib: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How every case is played.

    Attributes:
        traces: one a seed, counted from 1: a recording again and again, or a workload generated anew.
        timing: when requests come.
        granularity: blocks that are simulated as one.
    """

    traces: tuple[Trace, ...]
    timing: Timing
    granularity: int = 1


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of one case over all seeds."""

    policy: str
    endpoints: int
    cpu_gib: float
    figures: dict[str, Estimate]


def replay_once(plan: Plan, case: Case, place: int) -> dict[str, float]:
    """The figures of one replay, with the trace and the seed of that place; equal arguments give equal figures."""
    seed = place + 1
    fleet = case.fleet.coarser(plan.granularity)
    router = make_router(case.policy, fleet, granularity=plan.granularity, rng=Random(f"router {seed}"))
    replay = Replay(plan.traces[place], fleet, router, timing=plan.timing, rng=Random(f"arrivals {seed}"))
    with _without_collector():
        return figures(replay.run(), fleet.names)


def compare(
    plan: Plan, cases: Sequence[Case], *, jobs: int = 1, progress: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """Replay every case with every seed.

    Args:
        plan: how.
        cases: what.
        jobs: processes.
        progress: called after each replay.
    """
    n_seeds = len(plan.traces)
    runs = [(case, place) for case in cases for place in range(n_seeds)]
    found: list[dict[str, float]] = []
    for result in _results(plan, runs, jobs):
        found.append(result)
        progress()
    return [
        _outcome(case, found[place * n_seeds : (place + 1) * n_seeds]) for place, case in enumerate(cases)
    ]


def _results(plan: Plan, runs: list[tuple[Case, int]], jobs: int) -> Iterator[dict[str, float]]:
    if jobs == 1:
        yield from (replay_once(plan, case, place) for case, place in runs)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        tasks = [pool.submit(replay_once, plan, case, place) for case, place in runs]
        yield from (task.result() for task in tasks)


def _outcome(case: Case, found: list[dict[str, float]]) -> Outcome:
    return Outcome(
        policy=case.policy.name,
        endpoints=case.fleet.servers,
        cpu_gib=case.cpu_gib,
        figures={name: estimate([each[name] for each in found]) for name in found[0]},
    )


@contextmanager
def _without_collector() -> Generator[None]:
    """A replay keeps millions of small objects alive and leaves no cycles behind: looking for some costs a fifth."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
