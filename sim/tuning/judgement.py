"""Evaluation of the settings that a search found, on requests that the search did not use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from ..errors import ReplayError
from ..replay.comparison import Case, Plan, replay_served
from ..replay.figures import figures
from ..replay.fleet_spec import FleetSpec
from .bootstrap import Gain, paired_gain

Objective = Callable[[list[float]], float]
"""Figure of the times to the first token."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Results on unseen requests.

    Attributes:
        gain: of the found settings over the original ones.
        of_memory: gain of the CPU tier's new size alone; None if the size is unchanged.
        before: figures with the original settings.
        after: figures with the found settings.
    """

    gain: Gain
    of_memory: Gain | None
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Judge:
    """Evaluation by replaying requests that the search did not use.

    Attributes:
        searched: plan for the search.
        unseen: plan for the evaluation; the last of its traces is replayed.
    """

    searched: Plan
    unseen: Plan

    @classmethod
    def of(cls, plan: Plan) -> Judge:
        """Split a plan: reserve the last trace of a generated workload, or the second half of a recording.

        The second half is replayed after the first, so that its requests find filled caches.

        Raises:
            ReplayError: the warm-up leaves no request of the first half.
        """
        *others, last = plan.traces
        if others[0] != last:
            return cls(replace(plan, traces=tuple(others)), plan)
        half = len(last.requests) // 2
        if plan.warm_up >= half:
            raise ReplayError(
                f"{last.name}: the search has the first {half} of its {len(last.requests)} requests, and the warm-up takes "
                f"{plan.warm_up}; none is left to count. Use more requests, or a smaller --warm-up"
            )
        first_halves = (replace(trace, requests=trace.requests[:half]) for trace in others)
        return cls(replace(plan, traces=tuple(first_halves)), replace(plan, warm_up=max(plan.warm_up, half)))

    def check(self, fleet: FleetSpec) -> None:
        """Check that there is something to compare, before the search.

        Raises:
            ReplayError: no engine can hold any of the counted requests of the search, or of the evaluation.
        """
        largest = fleet.coarser(self.searched.granularity).max_request_tokens
        for use, plan, traces in (
            ("the search", self.searched, self.searched.traces),
            ("the comparison afterwards", self.unseen, self.unseen.traces[-1:]),
        ):
            tokens = [each.n_tokens for trace in traces for each in trace.requests[plan.warm_up :]]
            if min(tokens) > largest:
                raise ReplayError(
                    f"{traces[0].name}: all {len(tokens)} requests of {use} would be refused: they have {min(tokens)} tokens "
                    f"or more, and a server holds {largest}. Use larger --gpu-blocks"
                )

    def judge(self, before: Case, after: Case, objective: Objective) -> Judgement:
        """Replay the original settings, the found ones, and the original ones with the new CPU tier if that differs."""
        as_it_was, old = self._play(before)
        found, new = self._play(after)
        of_memory = None
        if after.cpu_gib != before.cpu_gib:
            larger = replace(before, fleet=after.fleet, cpu_gib=after.cpu_gib)
            of_memory = _gain(old, self._play(larger)[1], objective)
        return Judgement(_gain(old, new, objective), of_memory, as_it_was, found)

    def _play(self, case: Case) -> tuple[Mapping[str, float], Mapping[int, float]]:
        """Replay a case; return its figures, and the seconds to the first token by request."""
        replayed = replay_served(self.unseen, case, len(self.unseen.traces) - 1)
        times = {each.number: each.ttft_s for each in replayed.served}
        return figures(replayed, case.fleet.names), times


def _gain(before: Mapping[int, float], after: Mapping[int, float], objective: Objective) -> Gain:
    both = sorted(before.keys() & after.keys())
    old, new = ([side[number] for number in both] for side in (before, after))
    return paired_gain(old, new, objective, rng=Random(1))
