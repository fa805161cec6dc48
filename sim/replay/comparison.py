"""Replays of one trace with several policies, fleets and seeds."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec

from .. import hardware
from ..task_processes import results_of
from ..traces.trace import Trace
from .bound import bound, bound_figures
from .figures import Estimate, estimate, figures
from .fleet_spec import FleetSpec
from .policies import Policy, make_router
from .simulation import Replay, Replayed, Timing
from .size_curve import SizeCurve


@dataclass(frozen=True, slots=True)
class Case:
    """One policy on one fleet.

    Attributes:
        policy: routing policy.
        fleet: the engines.
        cpu_gib: size of their CPU tiers in GiB, for reports.
    """

    policy: Policy
    fleet: FleetSpec
    cpu_gib: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of all replays of a comparison.

    Attributes:
        traces: one per seed, counted from 1: the same recording each time, or a workload generated per seed.
        timing: when requests arrive.
        granularity: number of blocks that are simulated as one.
        warm_up: number of first requests per trace that fill the caches and are not counted.
        curve_gib: further sizes of the CPU tier, whose hit rate is computed from reuse distances.
    """

    traces: tuple[Trace, ...]
    timing: Timing
    granularity: int = 1
    warm_up: int = 0
    curve_gib: tuple[float, ...] = ()


Run = Callable[[Plan, Case, int], dict[str, float]]
"""Computes the figures of a case with the trace and seed at a place of the plan."""


class Outcome(msgspec.Struct, frozen=True, rename="camel"):
    """The figures of one case over all seeds."""

    policy: str
    endpoints: int
    cpu_gib: float
    figures: dict[str, Estimate]


def replay_once(plan: Plan, case: Case, place: int) -> dict[str, float]:
    """Replay a case with the trace and seed at `place`; equal arguments give equal figures."""
    fleet = case.fleet.coarser(plan.granularity)
    curve = SizeCurve(fleet.names, block_size=fleet.block_size)
    replayed = replay_served(plan, case, place, on_routed=curve.use if plan.curve_gib else None)
    return figures(replayed, fleet.names) | _on_curve(curve, plan, fleet)


def replay_served(
    plan: Plan, case: Case, place: int, *, on_routed: Callable[[str, array[int], int], None] | None = None
) -> Replayed:
    """Replay a case and return the served requests; for the arguments see `replay_once` and `Replay`."""
    fleet, seed = case.fleet.coarser(plan.granularity), place + 1
    router = make_router(case.policy, fleet, granularity=plan.granularity, rng=Random(f"router {seed}"))
    rng = _arrivals_rng(place)
    replay = Replay(plan.traces[place], fleet, router, timing=plan.timing, rng=rng, on_routed=on_routed)
    with _without_collector():
        replayed = replay.run()
    replayed.served = [each for each in replayed.served if each.number >= plan.warm_up]
    return replayed


def compare(
    plan: Plan, cases: Sequence[Case], *, jobs: int = 1, progress: Callable[[], None] = lambda: None
) -> list[Outcome]:
    """Replay all cases with all seeds; for the arguments see `replay_all`."""
    found = replay_all(plan, cases, jobs=jobs, progress=progress)
    return [_outcome(case, each) for case, each in zip(cases, found, strict=True)]


def replay_all(
    plan: Plan, cases: Sequence[Case], *, jobs: int = 1, progress: Callable[[], None] = lambda: None
) -> list[list[dict[str, float]]]:
    """Replay all cases, and return for each case the figures of each seed.

    Args:
        plan: settings of the replays.
        cases: policies and fleets.
        jobs: number of processes.
        progress: called after each replay.
    """
    return _by_case(replay_once, plan, cases, jobs=jobs, progress=progress)


BOUND = "bound"
"""Name of the outcomes of `bounds` in place of a policy."""


def bound_once(plan: Plan, case: Case, place: int) -> dict[str, float]:
    """Compute the bound of a case's fleet on the trace and seed at `place`, with the arrivals of `replay_once`."""
    found = bound(
        plan.traces[place],
        case.fleet.coarser(plan.granularity),
        timing=plan.timing,
        rng=_arrivals_rng(place),
        warm_up=plan.warm_up,
    )
    return bound_figures(found)


def bounds(plan: Plan, cases: Sequence[Case], *, jobs: int = 1) -> list[Outcome]:
    """Compute the bound of each fleet once, in the order of their first cases."""
    first: dict[FleetSpec, Case] = {}
    for case in cases:
        first.setdefault(case.fleet, Case(Policy(BOUND), case.fleet, case.cpu_gib))
    fleets = list(first.values())
    found = _by_case(bound_once, plan, fleets, jobs=jobs)
    return [_outcome(case, each) for case, each in zip(fleets, found, strict=True)]


def curve_figure(gib: float) -> str:
    """Return the name of the figure with the hit rate for a CPU tier of this size."""
    return f"hitRateAt{gib:g}GiB"


def _arrivals_rng(place: int) -> Random:
    return Random(f"arrivals {place + 1}")


def _on_curve(curve: SizeCurve, plan: Plan, fleet: FleetSpec) -> dict[str, float]:
    return {
        curve_figure(gib): curve.hit_rate(
            gpu_blocks=fleet.gpu_blocks,
            cpu_blocks=hardware.blocks_in(gib, block_size=fleet.block_size),
        )
        for gib in plan.curve_gib
    }


def _by_case(
    run: Run, plan: Plan, cases: Sequence[Case], *, jobs: int, progress: Callable[[], None] = lambda: None
) -> list[list[dict[str, float]]]:
    """Run all cases with all seeds, and return for each case the figures of each seed."""
    n_seeds = len(plan.traces)
    tasks = [partial(run, plan, case, place) for case in cases for place in range(n_seeds)]
    found: dict[int, dict[str, float]] = {}
    with results_of(tasks, jobs=jobs) as results:
        for number, result in results:
            found[number] = result
            progress()
    return [[found[first + seed] for seed in range(n_seeds)] for first in range(0, len(found), n_seeds)]


def _outcome(case: Case, found: list[dict[str, float]]) -> Outcome:
    return Outcome(
        policy=case.policy.name,
        endpoints=case.fleet.servers,
        cpu_gib=case.cpu_gib,
        figures={name: estimate([each[name] for each in found]) for name in found[0]},
    )


@contextmanager
def _without_collector() -> Generator[None]:
    """Disable the garbage collector, which takes a fifth of a replay: there are millions of objects but no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
