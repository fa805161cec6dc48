"""The page: what each policy sustains, and tables and plots of its figures over the load."""

# The plotting library's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from string import Template

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..replay.comparison import BOUND
from .curves import CLEAR, Curves, Settings

_TEMPLATE = Path(__file__).with_name("page.template")
_CONTENTS = Path(__file__).with_name("contents.template")
_FIGURES = (
    ("ttftMean", "mean seconds to the first token", ".2f", 1.0),
    ("ttftP99", "99th percentile of the seconds to the first token", ".1f", 1.0),
    ("hitRate", "prompt tokens found, %", ".1f", 100.0),
)
_CLOSE = (
    " Where `{ours}` is not at least {percent:.0f} % under the best other policy with these, its figures, those of the other "
    "and of all near it are means of {seeds} seeds."
)
IMAGES = "benchmark-load"
"""Prefix of the names of the plots."""


def page(found: Sequence[Curves], settings: Settings, *, left_out: Sequence[str] = ()) -> str:
    """Return the whole page.

    Args:
        found: the workloads that were run.
        settings: of the run.
        left_out: names of the other workloads.
    """
    ours, more = settings.ours, settings.close_seeds
    return Template(_TEMPLATE.read_text()).substitute(
        seeds=settings.seeds,
        close=_CLOSE.format(ours=ours, percent=100 * (1 - CLEAR), seeds=more)
        if more > settings.seeds
        else "",
        ours=ours,
        fractions=", ".join(f"{each:g}" for each in settings.fractions),
        left_out=f" Not run: {', '.join(left_out)}." if left_out else "",
        sustained=sustained_table(found, settings.policies),
        verdict=verdict_table(found, ours),
        mean=overall(found, ours),
        contents=_contents(found, settings),
        workloads="\n\n".join(_section(each, settings) for each in found),
    )


def sustained_table(found: Sequence[Curves], policies: Sequence[str]) -> str:
    """Return what each policy sustains on each workload."""
    rows = (
        [each.workload.name, each.workload.unit, *(f"{each.sustained[policy]:.3g}" for policy in policies)]
        for each in found
    )
    return _markdown(["workload", "load in", *policies], rows)


def verdict_table(found: Sequence[Curves], ours: str) -> str:
    """Return how `ours` compares with the best of the others at each load, for all workloads."""
    rows: list[list[str]] = []
    for each in found:
        others = [policy for policy in each.sustained if policy != ours]
        ratios = _ratios(each, ours, "ttftMean")
        tails, responses = _ratios(each, ours, "ttftP99"), _ratios(each, ours, "e2eMean")
        hits = [
            100 * (mine["hitRate"] - max(each.figures[policy][place]["hitRate"] for policy in others))
            for place, mine in enumerate(each.figures[ours])
        ]
        bounds = [
            mine["ttftMean"] / least["ttftMean"]
            for mine, least in zip(each.figures[ours], each.figures[BOUND], strict=True)
        ]
        other = max(each.sustained[policy] for policy in others)
        rows.append([
            each.workload.name,
            _change(each.sustained[ours] / other) if other else "-",
            _change(geometric_mean(ratios)),
            _change(max(ratios)),
            _change(max(tails)),
            _change(geometric_mean(responses)),
            _change(max(responses)),
            f"{min(hits):+.1f}",
            f"{min(bounds):.2f} to {max(bounds):.2f}",
        ])  # fmt: skip
    heads = [
        "workload",
        "sustains",
        "mean TTFT",
        "at worst",
        "p99 at worst",
        "whole response",
        "at worst",
        "hits at worst, points",
        "x bound",
    ]
    return _markdown(heads, rows)


def overall(found: Sequence[Curves], ours: str) -> str:
    """Return the geometric mean over workloads and loads of the mean time relative to each other policy's, in percent."""
    others = [policy for policy in found[0].sustained if policy != ours]
    rows: list[list[str]] = []
    for policy in others:
        ratios = [
            mine["ttftMean"] / theirs["ttftMean"]
            for each in found
            for mine, theirs in zip(each.figures[ours], each.figures[policy], strict=True)
        ]
        rows.append([policy, _change(geometric_mean(ratios))])
    best = [ratio for each in found for ratio in _ratios(each, ours, "ttftMean")]
    rows.append(["the best of them at each load", _change(geometric_mean(best))])
    return _markdown([f"mean TTFT of {ours} relative to", "geometric mean"], rows)


def plot(curves: Curves, policies: Sequence[str], folder: Path) -> Path:
    """Draw the figures of one workload over the load, as SVG."""
    figure = Figure(figsize=(13, 4.2), layout="constrained")
    for axes, (name, title, _form, factor) in zip(figure.subplots(1, len(_FIGURES)), _FIGURES, strict=True):
        for policy in (*policies, BOUND):
            values = [factor * each[name] for each in curves.figures[policy]]
            dashes = ":" if policy == BOUND else "-"
            axes.plot(curves.loads, values, dashes, marker="." if policy != BOUND else None, label=policy)
        if name != "hitRate":
            axes.set_yscale("log")
        axes.set_xlabel(curves.workload.unit)
        axes.set_title(title, fontsize="medium")
    figure.axes[0].legend(fontsize="x-small")
    figure.suptitle(curves.workload.name)
    file = folder / image_name(curves)
    with rc_context({"svg.hashsalt": "kvatlas"}):
        figure.savefig(file, metadata={"Date": None})
    return file


def image_name(curves: Curves) -> str:
    """Return the name of the plot's file."""
    return f"{IMAGES}-{curves.workload.name.replace('/', '-')}.svg"


def _section(curves: Curves, settings: Settings) -> str:
    parts = [f"### {curves.workload.name}", f"![{curves.workload.name}](images/{image_name(curves)})"]
    for name, title, form, factor in _FIGURES:
        heads = [title, *(f"{load:.3g}" for load in curves.loads)]
        rows = [
            [policy, *(format(factor * each[name], form) for each in curves.figures[policy])]
            for policy in (*settings.policies, BOUND)
        ]
        parts.append(_markdown(heads, rows))
    return "\n\n".join(parts)


def _contents(found: Sequence[Curves], settings: Settings) -> str:
    """Return the section that compares the policies of `Settings.pair`; empty without them."""
    if not settings.pair:
        return ""
    exact, approximate = settings.pair
    by_workload = {
        each.workload.name: [
            mine["ttftMean"] / theirs["ttftMean"]
            for mine, theirs in zip(each.pair[exact], each.pair[approximate], strict=True)
        ]
        for each in found
    }
    every = [ratio for ratios in by_workload.values() for ratio in ratios]
    return Template(_CONTENTS.read_text()).substitute(
        exact=exact,
        approximate=approximate,
        seeds=settings.pair_seeds,
        table=_markdown(
            ["workload", *(f"{part:g}" for part in settings.fractions), "mean"],
            (
                [name, *map(_change, ratios), _change(geometric_mean(ratios))]
                for name, ratios in by_workload.items()
            ),
        ),
        mean=_change(geometric_mean(every)),
    )


def _change(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.0f} %"


def _ratios(curves: Curves, ours: str, name: str) -> list[float]:
    """Return our figure relative to the best of the others at each load."""
    others = [policy for policy in curves.sustained if policy != ours]
    return [
        mine[name] / min(curves.figures[policy][place][name] for policy in others)
        for place, mine in enumerate(curves.figures[ours])
    ]


def _markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))
