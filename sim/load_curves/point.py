"""One point of a curve: the figures of a policy on a workload at one load, kept so that an interrupted run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ..errors import ReplayError
from ..replay.comparison import BOUND, Case, Plan, bound_once, replay_once
from ..replay.policies import Policy
from ..replay.simulation import Timing
from ..workloads import Workload

Figures = dict[str, float]

KEPT = (
    "ttftMean",
    "ttftP50",
    "ttftP99",
    "hitRate",
    "tpotMean",
    "prefilledElsewhere",
    "e2eMean",
    "outputTokensPerSecond",
    "requests",
    "refused",
)
"""Figures of a replay that are kept."""


class Point(msgspec.Struct, frozen=True):
    """Where figures belong; `policy` is the name of a built-in policy, or `bound`."""

    workload: str
    policy: str
    load: float
    seed: int


class _Line(msgspec.Struct, frozen=True):
    point: Point
    figures: Figures


def figures_at(workload: Workload, point: Point) -> Figures:
    """Replay the workload at a point, or compute its bound there. Equal arguments give equal figures."""
    trace = workload.make(point.load, point.seed)
    plan = Plan((trace,), Timing(jitter_s=trace.clock_grain_s()), workload.granularity, workload.warm_up)
    case = Case(Policy(point.policy), workload.fleet, workload.cpu_gib)
    if point.policy == BOUND:
        return bound_once(plan, case, 0)
    found = replay_once(plan, case, 0)
    return {name: found[name] for name in KEPT}


class Kept:
    """Figures by point in a file with one JSON object per line.

    Args:
        file: created if it does not exist; None to keep nothing after this process.
    Raises:
        ReplayError: the file cannot be read, or has other lines.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._figures: dict[Point, Figures] = {}
        if file is None or not file.exists():
            return
        try:
            lines = msgspec.json.Decoder(_Line).decode_lines(file.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise ReplayError(f"{file}: {error}; delete it, or name another file") from error
        self._figures = {line.point: line.figures for line in lines}

    def get(self, point: Point) -> Figures | None:
        """Return the figures of a point; None if they are not known."""
        return self._figures.get(point)

    def of(self, workload: str, policy: str) -> dict[Point, Figures]:
        """Return the known points of a policy on a workload."""
        return {
            point: figures
            for point, figures in self._figures.items()
            if (point.workload, point.policy) == (workload, policy)
        }

    def add(self, new: Mapping[Point, Figures]) -> None:
        """Keep the figures of new points, also in the file."""
        self._figures.update(new)
        if self._file is not None:
            with self._file.open("ab") as out:
                out.write(b"".join(msgspec.json.encode(_Line(*each)) + b"\n" for each in new.items()))
