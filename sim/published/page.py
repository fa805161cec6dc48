"""The page: published and simulated figures side by side."""

# The plotting library's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..replay.figures import Estimate
from .cases import PUBLISHED, VARIATIONS, Result
from .published import BASELINE, FIGURES, OFFLOADING, SOURCE, WORKLOADS

_TEMPLATE = Path(__file__).with_name("page.template")
_NAMES = {
    "ttftMean": ("mean TTFT, s", ".2f"),
    "ttftP90": ("p90 TTFT, s", ".2f"),
    "e2eMean": ("mean end-to-end, s", ".1f"),
    "e2eP90": ("p90 end-to-end, s", ".1f"),
    "tokensPerSecond": ("tokens a second", ",.0f"),
}

Results = Mapping[tuple[str, str], Result]
"""(name of the setup, workload) -> its result."""


def page(results: Results, *, seeds: int, granularity: int) -> str:
    """Return the whole page."""
    return Template(_TEMPLATE.read_text()).substitute(
        source=SOURCE,
        seeds=seeds,
        granularity=granularity,
        **{name.partition(" ")[0]: comparison(results[PUBLISHED.name, name], name) for name in WORKLOADS},
        **{f"{name.partition(' ')[0]}_variations": variations(results, name) for name in WORKLOADS},
        hits=hits(results),
    )


def comparison(result: Result, workload: str) -> str:
    """Return published and simulated figures of one workload, and the change by offloading."""
    rows = [
        [
            _NAMES[name][0],
            format(before, _NAMES[name][1]),
            format(after, _NAMES[name][1]),
            _percent(Estimate(after / before - 1)),
            _value(result.baseline[name], _NAMES[name][1]),
            _value(result.offloading[name], _NAMES[name][1]),
            _percent(result.changes[name]),
        ]
        for name, before, after in zip(FIGURES, BASELINE[workload], OFFLOADING[workload], strict=True)
    ]
    heads = ["", "published: baseline", "CPU tier", "change", "simulated: baseline", "CPU tier", "change"]
    return markdown(heads, rows)


def variations(results: Results, workload: str) -> str:
    """Return the changes by the CPU tier in every setup."""
    published = [
        _percent(Estimate(after / before - 1))
        for before, after in zip(BASELINE[workload], OFFLOADING[workload], strict=True)
    ]
    rows = [["published", *published]]
    for setup in VARIATIONS:
        changes = results[setup.name, workload].changes
        rows.append([setup.name, *(_percent(changes[name]) for name in FIGURES)])
    return markdown(
        ["change by the CPU tier", *(_NAMES[name][0].partition(",")[0] for name in FIGURES)], rows
    )


def hits(results: Results) -> str:
    """Return the share of prompt tokens found in each tier."""
    rows: list[list[str]] = []
    for setup in VARIATIONS:
        for workload in WORKLOADS:
            result = results[setup.name, workload]
            sides = (
                result.baseline["gpuHitRate"],
                result.offloading["gpuHitRate"],
                result.offloading["cpuHitRate"],
            )
            rows.append([setup.name, workload, *(f"{each.mean:.1%}" for each in sides)])
    return markdown(["", "workload", "GPU, baseline", "GPU, with CPU tier", "CPU"], rows)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. All columns but the first are right-aligned."""
    rule = ["---", *("---:" for _ in heads[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def plot(results: Results, file: Path) -> None:
    """Draw the changes by the CPU tier, published and simulated, as SVG."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, workload in zip(figure.subplots(1, len(WORKLOADS)), WORKLOADS, strict=True):
        changes = results[PUBLISHED.name, workload].changes
        published = [100 * (b / a - 1) for a, b in zip(BASELINE[workload], OFFLOADING[workload], strict=True)]
        simulated = [100 * changes[name].mean for name in FIGURES]
        margins = [100 * (changes[name].margin or 0.0) for name in FIGURES]
        rows = range(len(FIGURES))
        axes.barh([row - 0.2 for row in rows], published, 0.4, label="published")
        axes.barh([row + 0.2 for row in rows], simulated, 0.4, xerr=margins, label="simulated, 95 % interval")
        axes.set_yticks(list(rows), [_NAMES[name][0].partition(",")[0] for name in FIGURES])
        axes.invert_yaxis()
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel("change by the CPU tier, %")
        axes.set_title(workload)
        axes.legend(fontsize="small")
    with rc_context({"svg.hashsalt": "kvatlas"}):
        figure.savefig(file, metadata={"Date": None})


def _value(value: Estimate, form: str) -> str:
    return format(value.mean, form) + ("" if value.margin is None else f" ±{format(value.margin, form)}")


def _percent(value: Estimate) -> str:
    return f"{100 * value.mean:+.1f} %" + ("" if value.margin is None else f" ±{100 * value.margin:.1f}")
