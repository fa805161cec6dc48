"""Plot of a search: objective and cost of each trial. Needs the extra `plots`."""

# The library's own types leave keyword arguments open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import ReplayError
from ..output_files import check_file, writing
from .search import Goal, Trial, Tuned

try:
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ReplayError("plots need matplotlib: pip install 'kvatlas[plots]'") from error


def front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front, sorted by the first coordinate; smaller is better in both."""
    kept: list[tuple[float, float]] = []
    for point in sorted(set(points)):
        if not kept or point[1] < kept[-1][1]:
            kept.append(point)
    return kept


def check_pareto(file: Path) -> None:
    """Check that the plot can be drawn and written; missing folders are made.

    Raises:
        OutputError: the file cannot be written.
    """
    check_file("--plot", file)


def write_pareto(tuned: Tuned, goal: Goal, file: Path) -> None:
    """Plot the objective against the busiest server's share, and against the CPU tier's size if that was tuned.

    Raises:
        OutputError: the file cannot be written.
    """
    costs = [("busiestServer", "work of the busiest server, mean = 1")]
    if goal.cpu_sizes is not None:
        costs.append(("cpuGib", "CPU tier of a server, GiB"))
    figure = Figure(figsize=(7 * len(costs), 5), layout="constrained")
    for axes, (cost, label) in zip(figure.subplots(1, len(costs), squeeze=False)[0], costs, strict=True):
        _draw(axes, tuned, goal, cost)
        axes.set_xlabel(f"TTFT {goal.objective}, s")
        axes.set_ylabel(label)
        axes.legend(fontsize="small")
    file.parent.mkdir(parents=True, exist_ok=True)
    with (
        writing("--plot", file),
        rc_context({"svg.hashsalt": "kvatlas"}),
    ):  # so that equal trials give equal files
        figure.savefig(file, metadata={"Date": None})


def _draw(axes: Axes, tuned: Tuned, goal: Goal, cost: str) -> None:
    """Draw all trials by objective and `cost`, with the Pareto front of those within the guard rails."""

    def point(trial: Trial) -> tuple[float, float]:
        figures = {**trial.figures, "cpuGib": trial.settings.cpu_gib}
        return figures[goal.figure], figures[cost]

    for allowed, label, marker in ((True, "within the guard rails", "o"), (False, "outside", "x")):
        points = [point(trial) for trial in tuned.trials if trial.is_allowed is allowed]
        axes.scatter([x for x, _ in points], [y for _, y in points], marker=marker, label=label)
    best_of_all = front([point(trial) for trial in tuned.trials if trial.is_allowed])
    axes.plot([x for x, _ in best_of_all], [y for _, y in best_of_all], linewidth=0.8, label="Pareto front")
    for trial, label in ((tuned.trials[0], "original"), (tuned.best, "best")):
        axes.annotate(label, point(trial), textcoords="offset points", xytext=(6, 6))
