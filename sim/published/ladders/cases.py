"""Replays of the ladders: the guide's policy and ours in each arm, with figures stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import fmean

from ...replay.comparison import Case, Plan, replay_served
from ...replay.figures import figures
from ...replay.guides import GUIDES, guide
from ...replay.policies import Policy
from ...replay.simulation import Replayed, Timing
from ...task_processes import results_of
from ...traces.shared_prefix import staged_prefix_trace
from ...workloads import PUBLISHED_250
from .published import Arm, Ladder

SEEDS, GRANULARITY = 3, 4

GUIDE = "guide"
"""Stands for the policy of an arm's guide."""

StageFigures = Mapping[float, Mapping[str, float]]
"""Rate -> figures of its stage, means over seeds."""


@dataclass(frozen=True, slots=True)
class Run:
    """One arm of a ladder with one policy and seed; `policy` is `guide`, or the name of a built-in policy."""

    ladder: Ladder
    arm: Arm
    policy: str
    seed: int
    granularity: int

    def figures(self) -> StageFigures:
        """Replay all stages, and return the figures of those that are published."""
        stages = (*self.ladder.warm_up, *self.ladder.stages)
        trace = staged_prefix_trace(self.ladder.spec, stages, seed=self.seed)
        fleet = PUBLISHED_250 if self.arm.has_cpu else replace(PUBLISHED_250, cpu_blocks=0)
        policy = guide_policy(self.arm.guide) if self.policy == GUIDE else Policy(self.policy)
        case = Case(policy, fleet, fleet.cpu_blocks)
        replayed = replay_served(Plan((trace,), Timing(), self.granularity), case, 0)
        ends = list(accumulate(stage.n_requests for stage in stages))
        found: dict[float, Mapping[str, float]] = {}
        for stage, end in list(zip(stages, ends, strict=True))[len(self.ladder.warm_up) :]:
            served = [each for each in replayed.served if end - stage.n_requests <= each.number < end]
            found[stage.rate] = figures(Replayed(served), fleet.names)
        return found


Results = Mapping[tuple[str, str, str], StageFigures]
"""(ladder, arm, policy) -> figures."""


def run_all(
    ladders: Sequence[Ladder],
    policies: Sequence[str],
    *,
    seeds: int,
    granularity: int,
    jobs: int,
    progress: Callable[[], None],
) -> Results:
    """Replay every arm of the ladders with its guide's policy and with `policies`."""
    keys = [
        (ladder, arm, policy) for ladder in ladders for arm in ladder.arms for policy in (GUIDE, *policies)
    ]
    runs = [Run(*key, seed, granularity) for key in keys for seed in range(1, seeds + 1)]
    found: dict[int, StageFigures] = {}
    with results_of([run.figures for run in runs], jobs=jobs) as results:
        for place, result in results:
            found[place] = result
            progress()
    return {
        (ladder.name, arm.name, policy): _means([found[number * seeds + seed] for seed in range(seeds)])
        for number, (ladder, arm, policy) in enumerate(keys)
    }


def guide_policy(name: str) -> Policy:
    """Return the policy of an arm's guide by its name."""
    return Policy(name, guide(name) if name in GUIDES else None)


def _means(found: Sequence[StageFigures]) -> StageFigures:
    return {
        rate: {name: fmean(each[rate][name] for each in found) for name in of_stage}
        for rate, of_stage in found[0].items()
    }
