"""The comparison as a picture (SVG). Needs the extra `plots`."""

# The library's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import CompareError
from ..output_files import check_file, writing
from .figures import Row

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise CompareError("--plot needs matplotlib: pip install 'kvatlas[plots]'") from error

_TIMES = (("ttft_mean", "mean"), ("ttft_p99", "p99"))


def check_plot(file: Path) -> None:
    """Check that a picture can be drawn and written.

    Raises:
        OutputError: the file cannot be written.
    """
    check_file("--plot", file)


def write_plot(file: Path, rows: Sequence[Row], *, title: str) -> None:
    """Write bars if there is one rate, otherwise curves over the rates.

    Raises:
        OutputError: the file cannot be written.
    """
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    if len({row.rate for row in rows}) == 1:
        _times(left, rows)
        _cached(right, rows)
    else:
        for axes, (name, label) in zip((left, right), _TIMES, strict=True):
            _curves(axes, rows, name, f"{label} time to first token, s")
        figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    figure.suptitle(title)
    with (
        writing("--plot", file),
        rc_context({"svg.hashsalt": "kvatlas"}),
    ):  # so that equal figures give equal files
        figure.savefig(file, format="svg", metadata={"Date": None})


def _times(axes: Axes, rows: Sequence[Row]) -> None:
    for place, (name, label) in enumerate(_TIMES):
        heights = [number + (place - 0.5) * 0.4 for number in range(len(rows))]
        axes.barh(heights, [row.mean(name) for row in rows], 0.4, xerr=_ranges(rows, name), label=label)
    axes.set_yticks(range(len(rows)), [row.policy for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("time to first token, s")
    axes.legend()


def _cached(axes: Axes, rows: Sequence[Row]) -> None:
    axes.barh([row.policy for row in rows], [100 * row.mean("cached") for row in rows], 0.6)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("prompt tokens cached, %")


def _curves(axes: Axes, rows: Sequence[Row], name: str, label: str) -> None:
    for policy in dict.fromkeys(row.policy for row in rows):
        own = sorted((row for row in rows if row.policy == policy), key=lambda row: row.rate)
        values = [row.mean(name) for row in own]
        axes.errorbar([row.rate for row in own], values, yerr=_ranges(own, name), marker="o", label=policy)
    axes.set_xlabel("chats a second")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)


def _ranges(rows: Sequence[Row], name: str) -> list[list[float]]:
    """Return the distances from the mean to the least and the largest of the repeats."""
    means = [row.mean(name) for row in rows]
    ends = [row.range(name) for row in rows]
    return [
        [mean - low for mean, (low, _) in zip(means, ends, strict=True)],
        [high - mean for mean, (_, high) in zip(means, ends, strict=True)],
    ]
