"""The curves of a workload: what each policy sustains, then all policies at fractions of what the best one sustains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from ..replay.comparison import BOUND
from ..task_processes import results_of
from ..workloads import Workload
from .point import Figures, Kept, Point, figures_at
from .sustained import sustained_load

FRACTIONS = (0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
"""Loads of the curves, as fractions of what the best policy sustains."""

CLEAR, NEAR = 0.9, 1.25
"""A mean time is clearly better than another if it is less than the first part of it, and near if it is less than the second."""


@dataclass(frozen=True, slots=True)
class Curves:
    """All policies on one workload.

    Attributes:
        workload: the workload.
        sustained: policy -> load it sustains.
        loads: ascending loads of the curves.
        figures: policy, or `bound` -> figures at each of the loads, means over seeds; over more where that decides, see `Settings`.
        pair: the same of `Settings.pair`, over its own seeds.
    """

    workload: Workload
    sustained: Mapping[str, float]
    loads: Sequence[float]
    figures: Mapping[str, Sequence[Figures]]
    pair: Mapping[str, Sequence[Figures]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What to compute.

    Attributes:
        policies: names of built-in policies.
        ours: the one of them that is compared with the best of the others.
        seeds: traces per load, counted from 1.
        close_seeds: traces where `ours` is not clearly better than the best other one, for these two, those near the other, and the bound.
        fractions: loads relative to what the best policy sustains.
        pair: the same policy with exact and with approximate contents, compared at the same loads; empty for none.
        pair_seeds: traces per load for the pair.
    """

    policies: Sequence[str]
    ours: str = ""
    seeds: int = 1
    close_seeds: int = 1
    fractions: Sequence[float] = FRACTIONS
    pair: Sequence[str] = ()
    pair_seeds: int = 1


@dataclass(frozen=True, slots=True)
class _Search:
    """The search for the load that a policy sustains on a workload, with the points that are known of them."""

    workload: Workload
    policy: str
    seeds: int
    known: dict[Point, Figures]

    def run(self) -> _Found:
        """Return the load, and the new points."""
        new: dict[Point, Figures] = {}

        def wait_s(load: float) -> float:
            points = [Point(self.workload.name, self.policy, load, seed) for seed in range(1, self.seeds + 1)]
            for point in points:
                if point not in self.known and point not in new:
                    new[point] = figures_at(self.workload, point)
            return fmean((self.known.get(point) or new[point])["ttftMean"] for point in points)

        return _Found(sustained_load(wait_s, self.workload.loads[0]), new)


@dataclass(frozen=True, slots=True)
class _Found:
    load: float
    new: dict[Point, Figures]


def curves(
    workloads: Sequence[Workload],
    settings: Settings,
    kept: Kept,
    *,
    jobs: int = 1,
    progress: Callable[[str], None] = lambda _text: None,
) -> list[Curves]:
    """Compute the curves of all workloads.

    Args:
        workloads: of different names.
        settings: policies, seeds and loads.
        kept: points that are known; gets the new ones, so that a later call goes on there.
        jobs: number of processes.
        progress: called with a line after each search and each point.
    """
    searches = [
        _Search(each, policy, settings.seeds, kept.of(each.name, policy))
        for each in workloads
        for policy in settings.policies
    ]
    sustained: dict[str, dict[str, float]] = {each.name: {} for each in workloads}
    with results_of([each.run for each in searches], jobs=jobs) as results:
        for place, found in results:
            kept.add(found.new)
            workload, policy = searches[place].workload, searches[place].policy
            sustained[workload.name][policy] = found.load
            progress(f"{workload.name}: {policy} sustains {found.load:.3g} {workload.unit}")
    loads = {
        name: [float(f"{max(by_policy.values()) * part:.4g}") for part in settings.fractions]
        for name, by_policy in sustained.items()
    }

    def compute(points: Iterable[tuple[Workload, Point]]) -> None:
        missing = {point: workload for workload, point in points if kept.get(point) is None}
        wanted = list(missing)
        with results_of([partial(figures_at, missing[each], each) for each in wanted], jobs=jobs) as results:
            for place, figures in results:
                point = wanted[place]
                kept.add({point: figures})
                progress(f"{point.workload}: {point.policy} at {point.load:.3g}")

    places = [(each, load) for each in workloads for load in loads[each.name] if load]
    compute(
        (each, point)
        for each, load in places
        for point in _points(each, (*settings.policies, BOUND), load, settings.seeds)
        + _points(each, settings.pair, load, settings.pair_seeds)
    )
    close = {(each.name, load): _close(kept, each, load, settings) for each, load in places}
    compute(
        (each, point)
        for each, load in places
        for point in _points(each, close[each.name, load], load, settings.close_seeds)
    )

    def means(workload: Workload, policy: str, n_seeds: Callable[[float], int]) -> list[Figures]:
        return [_mean(kept, workload, policy, load, n_seeds(load)) for load in loads[workload.name] if load]

    def figures(workload: Workload, policy: str) -> list[Figures]:
        return means(
            workload,
            policy,
            lambda load: settings.close_seeds if policy in close[workload.name, load] else settings.seeds,
        )

    return [
        Curves(
            each,
            sustained[each.name],
            loads[each.name],
            {policy: figures(each, policy) for policy in (*settings.policies, BOUND)},
            {policy: means(each, policy, lambda _load: settings.pair_seeds) for policy in settings.pair},
        )
        for each in workloads
    ]


def _points(workload: Workload, policies: Sequence[str], load: float, seeds: int) -> list[Point]:
    return [Point(workload.name, policy, load, seed) for policy in policies for seed in range(1, seeds + 1)]


def _mean(kept: Kept, workload: Workload, policy: str, load: float, seeds: int) -> Figures:
    found = [kept.get(point) or {} for point in _points(workload, (policy,), load, seeds)]
    return {name: fmean(each[name] for each in found) for name in found[0]}


def _close(kept: Kept, workload: Workload, load: float, settings: Settings) -> Sequence[str]:
    """Return the policies of which more traces decide which one is better at a load."""
    others = [policy for policy in settings.policies if policy != settings.ours]
    if settings.close_seeds <= settings.seeds or not others:
        return ()
    seconds = {
        policy: _mean(kept, workload, policy, load, settings.seeds)["ttftMean"]
        for policy in (settings.ours, *others)
    }
    least = min(seconds[policy] for policy in others)
    if seconds[settings.ours] < CLEAR * least:
        return ()
    return (settings.ours, *(policy for policy in others if seconds[policy] < NEAR * least), BOUND)
