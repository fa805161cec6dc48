"""Search for settings that make a workload faster, within guard rails. Needs the extra `tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from ..errors import ReplayError
from ..replay.comparison import Case, Plan, replay_once
from ..replay.figures import percentile
from .cpu_sizes import CpuSizes
from .judgement import Judge, Judgement, Objective
from .settings import Settings, case_with, settings_of

try:
    import optuna
except ImportError as error:
    raise ReplayError("tuning needs optuna: pip install 'kvatlas[tune]'") from error

MAX_WEIGHT = 8.0
WEIGHT_STEP, CREDIT_STEP = 0.25, 0.05
"""Grids of the search, with readable values; only the ratios of weights matter."""

OBJECTIVES: Mapping[str, Objective] = {
    "mean": fmean,
    "p50": lambda values: percentile(sorted(values), 0.5),
    "p90": lambda values: percentile(sorted(values), 0.9),
    "p99": lambda values: percentile(sorted(values), 0.99),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """Objective and guard rails of a search.

    Attributes:
        objective: figure of the times to first token to minimize, one of `OBJECTIVES`.
        max_p99: maximum ratio of the 99th percentile to the original one.
        max_busiest: maximum ratio of the busiest server's share of the work to the original one.
        cpu_sizes: sizes of the CPU tier to choose from; None to keep the size.
    """

    objective: str = "mean"
    max_p99: float = 1.1
    max_busiest: float = 1.1
    cpu_sizes: CpuSizes | None = None

    @property
    def figure(self) -> str:
        """Name of the objective among the figures of a replay."""
        return f"ttft{self.objective.capitalize()}"

    def broken(self, before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
        """Return the names of the violated guard rails."""
        return [rail for rail, excess in self.excess(before, after).items() if excess > 0]

    def excess(self, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
        """Return for each guard rail by how much it is violated; at most 0 if it holds."""
        return {
            "p99": after["ttftP99"] / before["ttftP99"] - self.max_p99,
            "busiest": after["busiestServer"] / before["busiestServer"] - self.max_busiest,
            "refused": after["refused"] - before["refused"],
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of settings.

    Attributes:
        settings: the tried settings.
        figures: means over the seeds.
        excess: see `Goal.excess`.
    """

    settings: Settings
    figures: Mapping[str, float]
    excess: Mapping[str, float]

    @property
    def is_allowed(self) -> bool:
        """Whether all guard rails hold."""
        return max(self.excess.values()) <= 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a search.

    Attributes:
        trials: in order; the first one has the original settings.
        best: the allowed trial with the smallest objective, including the price of memory; the first if none is allowed.
        curve: trials with the best weights and credits at all sizes of the CPU tier, ascending; empty without a range.
        price_s: seconds by which a GiB of CPU memory had to improve the objective.
        judgement: comparison of `best` with the first trial, on requests that the search did not use.
    """

    trials: Sequence[Trial]
    best: Trial
    curve: Sequence[Trial]
    price_s: float
    judgement: Judgement


def n_replayed(goal: Goal, n_trials: int) -> int:
    """Return the total number of trials: the requested ones, and one for each further size of the CPU tier."""
    return n_trials + (len(goal.cpu_sizes.all) - 1 if goal.cpu_sizes is not None else 0)


def search(
    plan: Plan, case: Case, goal: Goal, *, n_trials: int, progress: Callable[[], None] = lambda: None
) -> Tuned:
    """Try settings on one part of the plan, and evaluate the best of them on the rest (`Judge.of`).

    Args:
        plan: at least two traces.
        case: a policy with a configuration, at the smallest size of its CPU tier.
        goal: objective and guard rails.
        n_trials: number of settings to try, including the original ones and, with a range, the largest CPU tier; at least 3.
        progress: called after each trial.
    Raises:
        ReplayError: no request is counted, or none is served with the original settings.
    """
    judge = Judge.of(plan)
    judge.check(case.fleet)
    running = _Search(judge.searched, case, goal, progress)
    running.run(n_trials)
    best = running.best()
    curve = running.curve(best)
    best = running.best()
    before, after = (case_with(case, trial.settings) for trial in (running.trials[0], best))
    judgement = judge.judge(before, after, OBJECTIVES[goal.objective])
    return Tuned(running.trials, best, curve, running.price_s, judgement)


class _Search:
    def __init__(self, plan: Plan, case: Case, goal: Goal, progress: Callable[[], None]) -> None:
        self._plan, self._case, self._goal, self._progress = plan, case, goal, progress
        self._sizes = goal.cpu_sizes
        largest = case.cpu_gib if self._sizes is None else self._sizes.high
        self._given = settings_of(case, max_cpu_gib=largest)
        self.trials: list[Trial] = []
        self.price_s = 0.0

    def run(self, n_trials: int) -> None:
        """Try the original settings, then those that the sampler proposes."""
        first, sizes = self._evaluate(self._given), self._sizes
        if sizes is not None:
            last = self._evaluate(replace(self._given, cpu_gib=sizes.high))
            name = self._goal.figure
            self.price_s = sizes.price(first.figures[name], last.figures[name])
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=1, multivariate=True)
        study = optuna.create_study(direction="minimize", sampler=sampler)
        study.optimize(self._objective, n_trials=n_trials - len(self.trials))

    def best(self) -> Trial:
        """Return the allowed trial with the least cost; among equal ones the one with the smallest CPU tier."""
        allowed = [each for each in self.trials if each.is_allowed] or self.trials[:1]
        return min(allowed, key=lambda each: (self._cost(each), each.settings.cpu_gib))

    def curve(self, best: Trial) -> list[Trial]:
        """Return trials with the settings of `best` at all sizes."""
        if self._sizes is None:
            return []
        return [
            best if gib == best.settings.cpu_gib else self._evaluate(replace(best.settings, cpu_gib=gib))
            for gib in self._sizes.all
        ]

    def _evaluate(self, settings: Settings) -> Trial:
        case, places = case_with(self._case, settings), range(len(self._plan.traces))
        found = [replay_once(self._plan, case, place) for place in places]
        means = {name: fmean(each[name] for each in found) for name in found[0]}
        before = self.trials[0].figures if self.trials else means
        if not before["requests"]:
            raise ReplayError(
                f"{self._plan.traces[0].name}: all requests of the search are refused with the original settings; "
                "look at the filters of the configuration"
            )
        self.trials.append(Trial(settings, means, self._goal.excess(before, means)))
        self._progress()
        return self.trials[-1]

    def _objective(self, proposal: optuna.Trial) -> float:
        trial = self._evaluate(self._suggest(proposal))
        for rail, excess in trial.excess.items():
            proposal.set_constraint(rail, excess)
        return self._cost(trial)

    def _suggest(self, proposal: optuna.Trial) -> Settings:
        given, sizes = self._given, self._sizes
        highest = max(MAX_WEIGHT, *given.weights.values())
        return Settings(
            weights={
                name: proposal.suggest_float(name, 0.0, highest, step=WEIGHT_STEP) for name in given.weights
            },
            credits={
                name: round(proposal.suggest_float(f"credit of {name}", 0.0, 1.0, step=CREDIT_STEP), 2)
                for name in given.credits
            },
            cpu_gib=(
                given.cpu_gib
                if sizes is None
                else proposal.suggest_float("CPU tier", sizes.low, sizes.high, step=sizes.step)
            ),
        )

    def _cost(self, trial: Trial) -> float:
        """Return the objective in seconds, including the price of the CPU tier."""
        return trial.figures[self._goal.figure] + self.price_s * trial.settings.cpu_gib
