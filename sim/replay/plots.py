"""Plots of a comparison, as SVG. Needs the extra `plots`."""

# The library's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from ..errors import ReplayError
from ..output_files import check_folder, writing
from .comparison import Outcome

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ReplayError("plots need matplotlib: pip install 'kvatlas[plots]'") from error

TIERS = (("gpuHitRate", "GPU"), ("cpuHitRate", "CPU"), ("storageHitRate", "storage"))
TIMES = (("ttftMean", "mean"), ("ttftP90", "p90"), ("ttftP99", "p99"))


def check_plots(folder: Path) -> None:
    """Check that plots can be drawn and written to a folder, which is created if it does not exist.

    Raises:
        OutputError: the folder cannot be used.
    """
    check_folder("--plots", folder)


def write_plots(outcomes: Sequence[Outcome], folder: Path, *, title: str) -> list[Path]:
    """Write the plots: bars for each fleet, and curves if there are several CPU sizes.

    Args:
        outcomes: at least one.
        folder: created if it does not exist.
        title: of all plots.
    Returns:
        the files.
    Raises:
        OutputError: one cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for (endpoints, cpu_gib), group in groupby(outcomes, key=lambda each: (each.endpoints, each.cpu_gib)):
        same_fleet = list(group)
        heading = f"{title}: {endpoints} servers, {cpu_gib:g} GiB of CPU memory each"
        name = f"{endpoints}-servers-{cpu_gib:g}-gib"
        files.append(_write(folder / f"{name}.svg", heading, (_hits, _waits), same_fleet))
    if len({each.cpu_gib for each in outcomes}) > 1:
        for endpoints in dict.fromkeys(each.endpoints for each in outcomes):
            same_size = [each for each in outcomes if each.endpoints == endpoints]
            heading = f"{title}: {endpoints} servers"
            files.append(
                _write(
                    folder / f"{endpoints}-servers-cpu-sizes.svg",
                    heading,
                    (_hit_curves, _wait_curves),
                    same_size,
                )
            )
    return files


def _write(
    file: Path,
    heading: str,
    draw: tuple[Callable[[Axes, Sequence[Outcome]], None], Callable[[Axes, Sequence[Outcome]], None]],
    outcomes: Sequence[Outcome],
) -> Path:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw[0](left, outcomes)
    draw[1](right, outcomes)
    figure.suptitle(heading)
    with (
        writing("--plots", file),
        rc_context({"svg.hashsalt": "kvatlas"}),
    ):  # so that equal figures give equal files
        figure.savefig(file, metadata={"Date": None})
    return file


def _hits(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    policies = [each.policy for each in outcomes]
    left = [0.0] * len(outcomes)
    for name, label in TIERS:
        widths = [100 * each.figures[name].mean for each in outcomes]
        if any(widths):
            axes.barh(policies, widths, left=left, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("prompt tokens found, %")
    axes.legend()


def _waits(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    height = 0.8 / len(TIMES)
    for place, (name, label) in enumerate(TIMES):
        rows = [row + (place - 1) * height for row in range(len(outcomes))]
        margins = [each.figures[name].margin or 0.0 for each in outcomes]
        axes.barh(rows, [each.figures[name].mean for each in outcomes], height, xerr=margins, label=label)
    axes.set_yticks(range(len(outcomes)), [each.policy for each in outcomes])
    axes.invert_yaxis()
    axes.set_xlabel("time to first token, s")
    axes.legend()


def _hit_curves(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    _curves(axes, outcomes, "hitRate", 100.0)
    axes.set_ylabel("prompt tokens found, %")
    axes.legend(fontsize="small")


def _wait_curves(axes: Axes, outcomes: Sequence[Outcome]) -> None:
    _curves(axes, outcomes, "ttftMean", 1.0)
    axes.set_ylabel("mean time to first token, s")


def _curves(axes: Axes, outcomes: Sequence[Outcome], name: str, factor: float) -> None:
    for policy in dict.fromkeys(each.policy for each in outcomes):
        points = sorted((each.cpu_gib, each.figures[name].mean) for each in outcomes if each.policy == policy)
        axes.plot([x for x, _ in points], [factor * y for _, y in points], marker="o", label=policy)
    axes.set_xlabel("CPU memory of a server, GiB")
    axes.set_ylim(bottom=0)
