"""Searches weights that make a workload faster, within guard rails. Needs the extra `tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from ..errors import ReplayError
from ..replay.comparison import Case, Plan, replay_once, replay_served
from ..replay.figures import percentile
from ..replay.policies import Policy
from .bootstrap import Gain, paired_gain
from .weights import weights_of, with_weights

try:
    import optuna
except ImportError as error:
    raise ReplayError("tuning needs optuna: pip install 'kvatlas[tune]'") from error

MAX_WEIGHT = 8.0
STEP = 0.25
"""Weights are searched on a grid that people can read; only their ratios matter."""

OBJECTIVES: Mapping[str, Callable[[list[float]], float]] = {
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
    """

    objective: str = "mean"
    max_p99: float = 1.1
    max_busiest: float = 1.1

    @property
    def figure(self) -> str:
        """Name of the objective among the figures of a replay."""
        return f"ttft{self.objective.capitalize()}"


@dataclass(frozen=True, slots=True)
class Trial:
    """Weights that were tried.

    Attributes:
        weights: by scorer.
        figures: means over the seeds.
        excess: guard rail -> by how much it is broken; at most 0 where it holds.
    """

    weights: Mapping[str, float]
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
        trials: in the order they were made; the first has the weights as they were.
        best: the allowed one with the smallest objective; the first where none is allowed.
        gain: of `best` over the first, on a trace and a seed that the search never saw.
    """

    trials: Sequence[Trial]
    best: Trial
    gain: Gain


def search(
    plan: Plan, case: Case, goal: Goal, *, n_trials: int, progress: Callable[[], None] = lambda: None
) -> Tuned:
    """Try weights on all traces of the plan but the last, which judges the best of them.

    Args:
        plan: at least two traces.
        case: a policy with a configuration.
        goal: what is wanted.
        n_trials: weights to try, those that are there included.
        progress: called after each.
    """
    searched = replace(plan, traces=plan.traces[:-1])
    config = case.policy.config
    if config is None:
        raise ReplayError(f"policy {case.policy.name!r} has no weights to tune; give a configuration")
    given = weights_of(config)
    trials: list[Trial] = []

    def tried(weights: Mapping[str, float]) -> Trial:
        found = [replay_once(searched, _with(case, weights), place) for place in range(len(searched.traces))]
        means = {name: fmean(each[name] for each in found) for name in found[0]}
        trials.append(Trial(weights, means, _excess(goal, trials[0].figures if trials else means, means)))
        progress()
        return trials[-1]

    def rated(asked: optuna.Trial) -> float:
        trial = tried(_asked(asked, given))
        for rail, excess in trial.excess.items():
            asked.set_constraint(rail, excess)
        return trial.figures[goal.figure]

    tried(given)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=1, multivariate=True)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    study.optimize(rated, n_trials=n_trials - 1)
    allowed = [each for each in trials if each.is_allowed] or trials[:1]
    best = min(allowed, key=lambda each: each.figures[goal.figure])
    return Tuned(trials, best, _judged(plan, case, goal, trials[0], best))


def _asked(trial: optuna.Trial, given: Mapping[str, float]) -> dict[str, float]:
    highest = max(MAX_WEIGHT, *given.values())
    return {name: trial.suggest_float(name, 0.0, highest, step=STEP) for name in given}


def _excess(goal: Goal, before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {
        "p99": after["ttftP99"] / before["ttftP99"] - goal.max_p99,
        "busiest": after["busiestServer"] / before["busiestServer"] - goal.max_busiest,
        "refused": after["refused"] - before["refused"],
    }


def _with(case: Case, weights: Mapping[str, float]) -> Case:
    config = case.policy.config
    assert config is not None  # noqa: S101 - search has refused a case without one
    return replace(case, policy=Policy(case.policy.name, with_weights(config, weights)))


def _judged(plan: Plan, case: Case, goal: Goal, before: Trial, best: Trial) -> Gain:
    last = len(plan.traces) - 1
    sides = [
        {each.number: each.ttft_s for each in replay_served(plan, _with(case, trial.weights), last).served}
        for trial in (before, best)
    ]
    both = sorted(sides[0].keys() & sides[1].keys())
    old, new = ([side[number] for number in both] for side in sides)
    return paired_gain(old, new, OBJECTIVES[goal.objective], rng=Random(1))
