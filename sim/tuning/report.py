"""Reports of a search, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec
from rich.box import SIMPLE
from rich.table import Table

from .bootstrap import Gain
from .search import Goal, Trial, Tuned

SHOWN = ("ttftP99", "busiestServer", "hitRate")
"""Figures shown beside the objective."""


class CurvePoint(msgspec.Struct, frozen=True, rename="camel"):
    """The found settings with one size of the CPU tier, on the requests of the search.

    Attributes:
        cpu_gib: CPU tier of a server.
        objective: in seconds.
        hit_rate: fraction of the prompt tokens found, 0 to 1.
    """

    cpu_gib: float
    objective: float
    hit_rate: float


class TuneReport(msgspec.Struct, frozen=True, rename="camel"):
    """The output of `--json`. Figures are those of the search; changes are relative, on requests the search did not use.

    Attributes:
        objective: the minimized figure.
        weights_before: by scorer; `_after` has the found ones.
        credits_before: by plugin and tier.
        cpu_gib_before: CPU tier of a server.
        price_s_per_gib: seconds by which a GiB had to improve the objective.
        figures_before: see docs/replay.md.
        change: of the objective, -0.1 is a tenth less; `_low` and `_high` are the ends of its 95 % interval.
        change_of_memory: change by the CPU tier's size alone; null if the size is unchanged.
        broken_on_unseen: guard rails that are violated on these requests.
        trials: number of tried settings.
        allowed: number of trials within the guard rails.
        curve: by size of the CPU tier, ascending.
    """

    objective: str
    weights_before: dict[str, float]
    weights_after: dict[str, float]
    credits_before: dict[str, float]
    credits_after: dict[str, float]
    cpu_gib_before: float
    cpu_gib_after: float
    price_s_per_gib: float
    figures_before: dict[str, float]
    figures_after: dict[str, float]
    change: float
    change_low: float
    change_high: float
    change_of_memory: Gain | None
    broken_on_unseen: tuple[str, ...]
    trials: int
    allowed: int
    curve: tuple[CurvePoint, ...]


def tune_report(tuned: Tuned, goal: Goal) -> TuneReport:
    """Make the report of a search."""
    before, best, judgement = tuned.trials[0], tuned.best, tuned.judgement
    return TuneReport(
        objective=goal.figure,
        weights_before=dict(before.settings.weights),
        weights_after=dict(best.settings.weights),
        credits_before=dict(before.settings.credits),
        credits_after=dict(best.settings.credits),
        cpu_gib_before=before.settings.cpu_gib,
        cpu_gib_after=best.settings.cpu_gib,
        price_s_per_gib=tuned.price_s,
        figures_before=dict(before.figures),
        figures_after=dict(best.figures),
        change=judgement.gain.change,
        change_low=judgement.gain.low,
        change_high=judgement.gain.high,
        change_of_memory=judgement.of_memory,
        broken_on_unseen=tuple(goal.broken(judgement.before, judgement.after)),
        trials=len(tuned.trials),
        allowed=sum(trial.is_allowed for trial in tuned.trials),
        curve=tuple(_point(trial, goal) for trial in tuned.curve),
    )


def summary(report: TuneReport) -> Iterator[str]:
    """Yield lines for people: figures, and the expected gain."""
    yield f"{report.trials} trials, {report.allowed} within the guard rails"
    for name in (report.objective, *SHOWN):
        yield f"{name:<16}{report.figures_before[name]:10.3f} -> {report.figures_after[name]:.3f}"
    if report.curve:
        yield f"{'CPU tier, GiB':<16}{report.cpu_gib_before:10g} -> {report.cpu_gib_after:g}"
        yield f"price of a GiB: {1000 * report.price_s_per_gib:.2f} ms of {report.objective}"
    gain = Gain(report.change, report.change_low, report.change_high)
    yield f"on requests the search never saw, {report.objective} changes by {_percent(gain)}"
    if report.change_of_memory is not None:
        yield f"of that, {_percent(report.change_of_memory)} by the CPU tier alone"
    if report.broken_on_unseen:
        yield f"guard rails violated on them: {', '.join(report.broken_on_unseen)}"
    if report.change_high >= 0:
        yield "this gain is not certain: keep the settings, or use more requests, seeds or trials"


def curve_table(report: TuneReport) -> Table:
    """Make a table of the objective over sizes of the CPU tier, with the change in milliseconds per GiB to the next size."""
    table = Table(
        *("GiB", report.objective, "hit rate", "ms per further GiB", ""),
        title="the found settings, by CPU tier",
        box=SIMPLE,
        title_justify="left",
    )
    gains = [f"{gain:+.2f}" for gain in _gains(report.curve)]
    for point, gain in zip(report.curve, [*gains, ""], strict=True):
        mark = "<- chosen" if point.cpu_gib == report.cpu_gib_after else ""
        table.add_row(f"{point.cpu_gib:g}", f"{point.objective:.3f}", f"{point.hit_rate:.1%}", gain, mark)
    return table


def _gains(curve: Sequence[CurvePoint]) -> Iterator[float]:
    for point, larger in pairwise(curve):
        yield 1000 * (larger.objective - point.objective) / (larger.cpu_gib - point.cpu_gib)


def _point(trial: Trial, goal: Goal) -> CurvePoint:
    return CurvePoint(trial.settings.cpu_gib, trial.figures[goal.figure], trial.figures["hitRate"])


def _percent(gain: Gain) -> str:
    return f"{100 * gain.change:+.1f} % ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
