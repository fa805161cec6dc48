"""`kvatlas tune`: weights that make a workload faster, as a ready file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import ReplayError
from ..replay.command import ReplayOptions, make_cases, make_plan
from .search import OBJECTIVES, Goal, Tuned, search
from .weights import file_with_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """What was asked for.

    Attributes:
        replay: trace and fleet, one configuration, and at least two seeds, the last of which only judges.
        goal: what is wanted.
        trials: weights to try, those of the file included.
        out: file for the tuned configuration, None for none.
        plot: file for the Pareto plot, None for none.
    """

    replay: ReplayOptions
    goal: Goal
    trials: int
    out: Path | None = None
    plot: Path | None = None


class TuneReport(msgspec.Struct, frozen=True, rename="camel"):
    """What `--json` prints: weights and figures before and after, and the gain on unseen requests."""

    objective: str
    weights_before: dict[str, float]
    weights_after: dict[str, float]
    figures_before: dict[str, float]
    figures_after: dict[str, float]
    change: float
    change_low: float
    change_high: float
    trials: int
    allowed: int


def run_tune(console: Console, options: TuneOptions) -> None:
    """Search, judge, and print what came of it.

    Raises:
        KVAtlasError: trace, configuration or options cannot be used.
    """
    if options.goal.objective not in OBJECTIVES:
        raise ReplayError(f"found objective {options.goal.objective!r}, want one of {', '.join(OBJECTIVES)}")
    plan, (case,) = make_plan(options.replay), make_cases(options.replay)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("trials", total=options.trials)
        tuned = search(
            plan, case, options.goal, n_trials=options.trials, progress=lambda: progress.advance(task)
        )
    text, difference = file_with_weights(options.replay.configs[0], tuned.best.weights)
    if options.out is not None:
        options.out.write_text(text)
    if options.plot is not None:
        from .pareto import write_pareto  # noqa: PLC0415 - the extra `plots` is needed for this alone

        write_pareto(tuned, options.goal, options.plot)
    if options.replay.json:
        report = msgspec.json.format(msgspec.json.encode(_report(tuned, options.goal)))
        console.out(report.decode(), highlight=False)
    else:
        _print(console, tuned, options.goal, difference)


def _report(tuned: Tuned, goal: Goal) -> TuneReport:
    before, best, gain = tuned.trials[0], tuned.best, tuned.gain
    return TuneReport(
        objective=goal.figure,
        weights_before=dict(before.weights),
        weights_after=dict(best.weights),
        figures_before=dict(before.figures),
        figures_after=dict(best.figures),
        change=gain.change,
        change_low=gain.low,
        change_high=gain.high,
        trials=len(tuned.trials),
        allowed=sum(trial.is_allowed for trial in tuned.trials),
    )


def _print(console: Console, tuned: Tuned, goal: Goal, difference: str) -> None:
    report = _report(tuned, goal)
    console.print(f"{report.trials} trials, {report.allowed} within the guard rails", highlight=False)
    for name in (goal.figure, "ttftP99", "busiestServer", "hitRate"):
        before, after = report.figures_before[name], report.figures_after[name]
        console.print(f"{name:<16}{before:10.3f} -> {after:.3f}", highlight=False)
    console.print(
        f"on requests the search never saw, {goal.figure} changes by {100 * report.change:+.1f} % "
        f"({100 * report.change_low:+.1f} to {100 * report.change_high:+.1f})",
        highlight=False,
    )
    if report.change_high >= 0:
        console.print("that is no sure gain: keep the weights, or give more requests, seeds or trials")
    console.print(
        difference or "the weights of the file are the best that were tried", markup=False, highlight=False
    )
