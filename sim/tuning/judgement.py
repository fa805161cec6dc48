"""What settings found on one part of a workload are worth on another, which the search never saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from ..replay.comparison import Case, Plan, replay_served
from ..replay.figures import figures
from .bootstrap import Gain, paired_gain

Objective = Callable[[list[float]], float]
"""A figure of times to first token."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found on unseen requests.

    Attributes:
        gain: of the settings found over those that were there.
        of_memory: the part of it that the size of the CPU tier brings by itself; None where it stays.
        before: figures with the settings that were there.
        after: figures with those found.
    """

    gain: Gain
    of_memory: Gain | None
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Judge:
    """Replays the requests kept back from a search.

    Attributes:
        searched: what the search may see.
        unseen: what judges; the last of its traces is played.
    """

    searched: Plan
    unseen: Plan

    @classmethod
    def of(cls, plan: Plan) -> Judge:
        """Of a generated workload keeps the last trace back; of a recording, the same each time, its second half.

        That half is played behind the first, so that its requests find caches as they would.
        """
        *others, last = plan.traces
        if others[0] != last:
            return cls(replace(plan, traces=tuple(others)), plan)
        half = len(last.requests) // 2
        first_halves = (replace(trace, requests=trace.requests[:half]) for trace in others)
        return cls(replace(plan, traces=tuple(first_halves)), replace(plan, warm_up=max(plan.warm_up, half)))

    def judge(self, before: Case, after: Case, objective: Objective) -> Judgement:
        """Three replays at most: as it was, that with the other CPU tier, and the settings found."""
        as_it_was, old = self._play(before)
        found, new = self._play(after)
        of_memory = None
        if after.cpu_gib != before.cpu_gib:
            larger = replace(before, fleet=after.fleet, cpu_gib=after.cpu_gib)
            of_memory = _gain(old, self._play(larger)[1], objective)
        return Judgement(_gain(old, new, objective), of_memory, as_it_was, found)

    def _play(self, case: Case) -> tuple[Mapping[str, float], Mapping[int, float]]:
        """Figures, and seconds to the first token by request."""
        replayed = replay_served(self.unseen, case, len(self.unseen.traces) - 1)
        times = {each.number: each.ttft_s for each in replayed.served}
        return figures(replayed, case.fleet.names), times


def _gain(before: Mapping[int, float], after: Mapping[int, float], objective: Objective) -> Gain:
    both = sorted(before.keys() & after.keys())
    old, new = ([side[number] for number in both] for side in (before, after))
    return paired_gain(old, new, objective, rng=Random(1))
