"""Objectives in a cost: the chance that a request meets its own, and what it does to those of the requests beside it."""

from __future__ import annotations

import math

import numpy as np

from ..core.candidates import Candidates, Directory
from ..core.columns import FloatArray, RowArray
from ..core.decision import Decision
from ..core.slo import Slo
from .attainment import TPOT_ERROR, TTFT_ERROR, chances
from .cost_model import CostModel
from .expected import Expected

STEP = math.log(1.1)
"""Objectives for the time per output token are rounded to powers of 1.1: a prediction is not closer."""

N_LIMITS = 128
"""Different objectives after that: from 1 ms to 180 s."""

MAX_ROWS = 16_384
"""Most endpoints that are remembered; those without requests are forgotten beyond that."""

FIRST_ROWS = 16
"""Rows of new columns, which double when they are full."""

DEVIATION = math.sqrt(math.pi / 2.0)
"""Standard deviation of a normal distribution by its mean absolute deviation."""

LEAST_ERROR = 0.05
"""Least error of a prediction: a first token or a step more is never known better."""


class RunningObjectives:
    """How many requests under way at each endpoint want which time per output token. Bounded."""

    def __init__(self) -> None:
        self._counts: dict[int, FloatArray] = {}
        """Limit -> requests by row; limits of no request are left out."""
        self._totals: dict[int, int] = {}
        self._rows: dict[str, int] = {}
        self._n_rows = FIRST_ROWS
        self._directory: Directory | None = None
        self._places: RowArray = np.empty(0, np.intp)

    def begun(self, endpoint: str, tpot_ms: float) -> None:
        """Count a request that was sent to an endpoint. Cost: O(1)."""
        limit, row = _rounded(tpot_ms), self._row(endpoint)
        if limit not in self._counts:
            self._counts[limit], self._totals[limit] = np.zeros(self._n_rows), 0
        self._counts[limit][row] += 1.0
        self._totals[limit] += 1

    def ended(self, endpoint: str, tpot_ms: float) -> None:
        """Forget a request that was counted. Cost: O(1)."""
        limit = _rounded(tpot_ms)
        self._counts[limit][self._row(endpoint)] -= 1.0
        self._totals[limit] -= 1
        if not self._totals[limit]:
            del self._counts[limit], self._totals[limit]

    def columns(self, candidates: Candidates) -> tuple[FloatArray, FloatArray] | None:
        """Return the limits in milliseconds, shape (limits, 1), and the requests, shape (limits, n); None without any."""
        if not self._counts:
            return None
        if candidates.directory is not self._directory:
            self._follow(candidates.directory)
        places = self._places if candidates.rows is None else self._places[candidates.rows]
        limits = np.exp(STEP * np.array([*self._counts], np.float64))[:, np.newaxis]
        return limits, np.stack([counts[places] for counts in self._counts.values()])

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._rows)
            if row == self._n_rows:
                self._n_rows *= 2
                self._counts = {
                    limit: np.concatenate([column, np.zeros_like(column)])
                    for limit, column in self._counts.items()
                }
        return row

    def _follow(self, directory: Directory) -> None:
        if len(self._rows) > MAX_ROWS:
            self._forget_others(frozenset(directory.names))
        self._places = np.array([self._row(name) for name in directory.names], np.intp)
        self._directory = directory

    def _forget_others(self, names: frozenset[str]) -> None:
        """Close up the rows of endpoints that are not in the fleet and have no request under way."""
        used = sum(self._counts.values(), np.zeros(self._n_rows)) > 0.0
        kept = [(name, row) for name, row in self._rows.items() if name in names or used[row]]
        self._rows = {name: new for new, (name, _) in enumerate(kept)}
        rows, self._n_rows = [row for _, row in kept], max(FIRST_ROWS, len(kept))
        for limit, column in self._counts.items():
            closed = self._counts[limit] = np.zeros(self._n_rows)
            closed[: len(rows)] = column[rows]


def chance(model: CostModel, expected: Expected, slo: Slo) -> FloatArray:
    """Return the chance by endpoint that a request meets all objectives that it names, by the errors of the model so far."""
    found = np.ones(len(expected.candidates))
    if slo.ttft_ms is not None:
        found *= chances(expected.ttft_ms / slo.ttft_ms, _error(model.ttft_error, TTFT_ERROR))
    if slo.tpot_ms is not None:
        found *= chances(model.tpot_ms(expected) / slo.tpot_ms, _error(model.tpot_error, TPOT_ERROR))
    return found


def endangered(model: CostModel, expected: Expected, running: RunningObjectives) -> FloatArray:
    """Return by endpoint how many objectives of the requests under way one more request is expected to break.

    It prolongs their steps: it is one more in the batch, and its prompt is computed in between. Cost: O(endpoints * limits).
    """
    columns = running.columns(expected.candidates)
    if columns is None:
        return np.zeros(len(expected.candidates))
    limits, counts = columns
    before = model.tpot_ms(expected)
    after = before + model.tpot_delay_ms(expected)
    error = _error(model.tpot_error, TPOT_ERROR)
    broken = counts * (chances(before / limits, error) - chances(after / limits, error))
    total: FloatArray = np.add.reduce(broken, axis=0)
    return total


def tpot_limit(decision: Decision) -> float | None:
    """Return the objective for the time per output token of a routed request; None if it named none."""
    origin = decision.origin
    return origin.slo.tpot_ms if origin is not None and origin.slo is not None else None


def _error(mean: float | None, prior: float) -> float:
    """Return the standard deviation of the logarithm of observed by predicted times, by its mean absolute value."""
    return prior if mean is None else max(LEAST_ERROR, DEVIATION * mean)


def _rounded(tpot_ms: float) -> int:
    return min(max(0, round(math.log(tpot_ms) / STEP)), N_LIMITS - 1)
