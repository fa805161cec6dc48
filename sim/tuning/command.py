"""`kvatlas tune`: a configuration file with settings that make a workload faster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..errors import ReplayError
from ..output_files import check_file, writing
from ..replay.command import ReplayOptions, make_cases, make_plan
from .report import TuneReport, curve_table, summary, tune_report
from .search import OBJECTIVES, Goal, n_replayed, search
from .settings import file_with


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """Options of the command.

    Attributes:
        replay: trace and fleet, one configuration, one size of the CPU tier, and at least two seeds.
        goal: objective and guard rails.
        trials: number of settings to try, including those of the file.
        out: file for the tuned configuration; None for no file.
        plot: file for the Pareto plot; None for no plot.
    """

    replay: ReplayOptions
    goal: Goal
    trials: int
    out: Path | None = None
    plot: Path | None = None


def run_tune(console: Console, options: TuneOptions) -> None:
    """Search for settings, evaluate them on unseen requests, and print the results.

    Raises:
        KVAtlasError: trace, configuration or options cannot be used.
    """
    goal = options.goal
    if goal.objective not in OBJECTIVES:
        raise ReplayError(f"found objective {goal.objective!r}, want one of {', '.join(OBJECTIVES)}")
    (case,), plan = make_cases(options.replay), make_plan(options.replay)
    if options.out is not None:
        check_file("--out", options.out)
    if options.plot is not None:
        from .pareto import check_pareto  # noqa: PLC0415 - needs the extra `plots`

        check_pareto(options.plot)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("trials", total=n_replayed(goal, options.trials))
        tuned = search(plan, case, goal, n_trials=options.trials, progress=lambda: progress.advance(task))
    text, difference = file_with(options.replay.configs[0], case, tuned.best.settings)
    report = tune_report(tuned, goal)
    if options.replay.json:
        console.out(msgspec.json.format(msgspec.json.encode(report)).decode(), highlight=False)
    else:
        _print(console, report, difference)
    if options.out is not None:
        with writing("--out", options.out):
            options.out.write_text(text)
    if options.plot is not None:
        from .pareto import write_pareto  # noqa: PLC0415 - needs the extra `plots`

        write_pareto(tuned, goal, options.plot)


def _print(console: Console, report: TuneReport, difference: str) -> None:
    for line in summary(report):
        console.print(line, highlight=False, soft_wrap=True)
    if report.curve:
        console.print(curve_table(report))
    console.print(
        difference or "no change to the file: no tried settings are better",
        markup=False,
        highlight=False,
    )
