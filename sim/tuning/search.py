"""Searches settings that make a workload faster, within guard rails. Needs the extra `tune`."""

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
"""Settings are searched on grids that people can read; of weights only the ratios matter."""

OBJECTIVES: Mapping[str, Objective] = {
    "mean": fmean,
    "p50": lambda values: percentile(sorted(values), 0.5),
    "p90": lambda values: percentile(sorted(values), 0.9),
    "p99": lambda values: percentile(sorted(values), 0.99),
}


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted.

    Attributes:
        objective: what of the times to first token is made small, of `OBJECTIVES`.
        max_p99: how many times as long as before the 99th percentile may get.
        max_busiest: how many times as much as before the busiest server's share of the work may be.
        cpu_sizes: sizes of the CPU tier to choose from; None where it stays.
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
        """Names of the guard rails that do not hold."""
        return [rail for rail, excess in self.excess(before, after).items() if excess > 0]

    def excess(self, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
        """Guard rail -> by how much it is broken; at most 0 where it holds."""
        return {
            "p99": after["ttftP99"] / before["ttftP99"] - self.max_p99,
            "busiest": after["busiestServer"] / before["busiestServer"] - self.max_busiest,
            "refused": after["refused"] - before["refused"],
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """Settings that were tried.

    Attributes:
        settings: what was tried.
        figures: means over the seeds.
        excess: see `Goal.excess`.
    """

    settings: Settings
    figures: Mapping[str, float]
    excess: Mapping[str, float]

    @property
    def is_allowed(self) -> bool:
        """Whether every guard rail holds."""
        return max(self.excess.values()) <= 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """What a search came to.

    Attributes:
        trials: in the order they were made; the first has the settings as they were.
        best: the allowed one with the smallest objective, price of memory included; the first where no other is allowed.
        curve: trials with the best weights and credits at every size of the CPU tier, ascending; empty without a range.
        price_s: seconds of the objective that a GiB of CPU memory had to bring.
        judgement: of `best` beside the first, on requests the search never saw.
    """

    trials: Sequence[Trial]
    best: Trial
    curve: Sequence[Trial]
    price_s: float
    judgement: Judgement


def n_replayed(goal: Goal, n_trials: int) -> int:
    """Trials of a search: those asked for, and one for every further size of the CPU tier."""
    return n_trials + (len(goal.cpu_sizes.all) - 1 if goal.cpu_sizes is not None else 0)


def search(
    plan: Plan, case: Case, goal: Goal, *, n_trials: int, progress: Callable[[], None] = lambda: None
) -> Tuned:
    """Try settings on a part of the plan, and judge the best of them on the rest (`Judge.of`).

    Args:
        plan: at least two traces.
        case: a policy with a configuration, at the smallest size of its CPU tier.
        goal: what is wanted.
        n_trials: settings to try, those that are there included, and with a range the largest CPU tier; at least 3.
        progress: called after each.
    """
    judge = Judge.of(plan)
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
        """Try the settings that are there, and as many more as the sampler is to propose."""
        first, sizes = self._tried(self._given), self._sizes
        if sizes is not None:
            last = self._tried(replace(self._given, cpu_gib=sizes.high))
            name = self._goal.figure
            self.price_s = sizes.price(first.figures[name], last.figures[name])
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=1, multivariate=True)
        study = optuna.create_study(direction="minimize", sampler=sampler)
        study.optimize(self._rated, n_trials=n_trials - len(self.trials))

    def best(self) -> Trial:
        """The allowed trial that costs least; of equals the smallest CPU tier."""
        allowed = [each for each in self.trials if each.is_allowed] or self.trials[:1]
        return min(allowed, key=lambda each: (self._cost(each), each.settings.cpu_gib))

    def curve(self, best: Trial) -> list[Trial]:
        """Trials with the settings of `best` at every size."""
        if self._sizes is None:
            return []
        return [
            best if gib == best.settings.cpu_gib else self._tried(replace(best.settings, cpu_gib=gib))
            for gib in self._sizes.all
        ]

    def _tried(self, settings: Settings) -> Trial:
        case, places = case_with(self._case, settings), range(len(self._plan.traces))
        found = [replay_once(self._plan, case, place) for place in places]
        means = {name: fmean(each[name] for each in found) for name in found[0]}
        before = self.trials[0].figures if self.trials else means
        self.trials.append(Trial(settings, means, self._goal.excess(before, means)))
        self._progress()
        return self.trials[-1]

    def _rated(self, asked: optuna.Trial) -> float:
        trial = self._tried(self._asked(asked))
        for rail, excess in trial.excess.items():
            asked.set_constraint(rail, excess)
        return self._cost(trial)

    def _asked(self, asked: optuna.Trial) -> Settings:
        given, sizes = self._given, self._sizes
        highest = max(MAX_WEIGHT, *given.weights.values())
        return Settings(
            weights={
                name: asked.suggest_float(name, 0.0, highest, step=WEIGHT_STEP) for name in given.weights
            },
            credits={
                name: round(asked.suggest_float(f"credit of {name}", 0.0, 1.0, step=CREDIT_STEP), 2)
                for name in given.credits
            },
            cpu_gib=(
                given.cpu_gib
                if sizes is None
                else asked.suggest_float("CPU tier", sizes.low, sizes.high, step=sizes.step)
            ),
        )

    def _cost(self, trial: Trial) -> float:
        """Objective in seconds, with the price of the CPU tier."""
        return trial.figures[self._goal.figure] + self.price_s * trial.settings.cpu_gib
