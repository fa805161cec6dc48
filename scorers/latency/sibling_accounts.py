"""Accounts of other processes, beside a cost model's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..core.columns import FloatArray, RowArray
from ..core.shared import Contribution
from .lines import (
    BOOKED,
    BUSY_AT,
    BUSY_MS,
    BUSY_S,
    LOG_PACE,
    N_AHEAD,
    N_LINES,
    N_PACE,
    N_TARGETS,
    OVERDUE,
    PACE_TARGETS,
    PLACED,
    PLACED_AT,
    PLACED_NEW,
    PLACED_S,
    READY_AT,
    RECEIVED_AT,
    RECEIVING_AT,
    SENT_AT,
    SINCE,
    TIMES,
    TOKENS_AHEAD,
    TOKENS_HELD,
    WORK,
)
from .paces import MOST_LOG_PACE, follow_targets

SUMS = (WORK, BOOKED, OVERDUE, N_AHEAD, TOKENS_AHEAD, TOKENS_HELD)
"""Lines that add up. Blocks that requests of several processes share count for each of these processes."""

LATEST_S = 1.0
"""Seconds by which a change may seem to come later than the message that tells it."""

COUNTS = (*SUMS, BUSY_MS, N_PACE, N_TARGETS, PLACED, PLACED_NEW)
"""Lines that are never below 0."""

FADING = (((BUSY_MS,), BUSY_AT, BUSY_S), ((PLACED, PLACED_NEW), PLACED_AT, PLACED_S))
"""Lines that fade, with that of their last change and their time constant."""


class SiblingAccounts:
    """The sums over all other processes, by row of `Accounts`; false while there are none."""

    def __init__(self) -> None:
        self._columns: dict[int, FloatArray] = {}
        self._table: FloatArray = np.zeros((N_LINES, 0))
        """The same as lines; rebuilt after changes, before the next decision."""
        self._is_current = True
        self._taught: dict[int, dict[str, tuple[float, float]]] = {}
        """By row and owner, the sum and the number of the observed paces that were learned from."""

    def __bool__(self) -> bool:
        return bool(self._columns)

    def set(self, row: int, siblings: Sequence[Contribution]) -> bool:
        """Replace what the siblings have on an endpoint, and return whether that is more work. Cost: O(siblings)."""
        columns = [_column(each) for each in siblings if _is_sensible(each.numbers)]
        before = self._columns.get(row)
        if not columns:
            self._columns.pop(row, None)
            self._is_current = False
            return False
        total = columns[0]
        for other in columns[1:]:
            _add(total[:, np.newaxis], other[:, np.newaxis])
        self._columns[row] = total
        if row < self._table.shape[1]:
            self._table[:, row] = total
        else:
            self._is_current = False
        return bool(total[WORK] > (before[WORK] if before is not None else 0.0))

    def teach_pace(self, row: int, siblings: Sequence[Contribution], own: FloatArray) -> None:
        """Learn the pace of an endpoint from what siblings have observed since the last time.

        Args:
            row: of the endpoint.
            siblings: what they have.
            own: own lines of the endpoint, changed in place. One who knows less than a new sibling takes its pace.
        """
        before, after = self._taught.get(row, {}), dict[str, tuple[float, float]]()
        for owner, _, numbers in siblings:
            if not _is_sensible(numbers):
                continue
            total, n = numbers[PACE_TARGETS], numbers[N_TARGETS]
            after[owner] = total, n
            if owner not in before:
                if numbers[N_PACE] > own[N_PACE]:
                    pace = min(max(numbers[LOG_PACE], -MOST_LOG_PACE), MOST_LOG_PACE)
                    own[LOG_PACE], own[N_PACE] = pace, numbers[N_PACE]
                continue
            known_total, known_n = before[owner]
            if n >= known_n + 1.0:  # part of an observation would be a mean without limit
                follow_targets(own, n - known_n, (total - known_total) / (n - known_n))
        if after:
            self._taught[row] = after
        else:
            self._taught.pop(row, None)

    def number(self, line: int, row: int) -> float:
        """Return one line of an endpoint, 0 if the siblings have nothing there."""
        column = self._columns.get(row)
        return float(column[line]) if column is not None else 0.0

    def add_to(self, table: FloatArray, places: RowArray) -> None:
        """Add the siblings' accounts to own ones, in place.

        Args:
            table: own lines of some endpoints.
            places: rows of these endpoints.
        """
        if not self._is_current or (len(places) and int(places.max()) >= self._table.shape[1]):
            self._table = np.zeros((N_LINES, 1 + max(int(places.max(initial=0)), *self._columns)))
            for row, column in self._columns.items():
                self._table[:, row] = column
            self._is_current = True
        _add(table, self._table.take(places, axis=1))

    def move(self, rows: Mapping[int, int]) -> None:
        """Follow new numbers of the rows; rows that are not named are forgotten."""
        self._columns = {rows[row]: column for row, column in self._columns.items() if row in rows}
        self._taught = {rows[row]: taught for row, taught in self._taught.items() if row in rows}
        self._is_current = False


def _is_sensible(numbers: Sequence[float]) -> bool:
    """Return whether a process can have told these."""
    if len(numbers) != N_LINES or min(numbers[line] for line in COUNTS) < 0.0:
        return False
    return all(numbers[changed_at] > -LATEST_S for _, changed_at, _ in FADING)


def _column(sibling: Contribution) -> FloatArray:
    column = np.array(sibling.numbers, np.float64)
    for line in TIMES:
        column[line] = sibling.at - column[line]
    return column


def _add(table: FloatArray, other: FloatArray) -> None:
    """Add accounts to others, in place. Of two times at which something begins or ends the later one counts."""
    for line in SUMS:
        table[line] += other[line]
    for line in (SINCE, READY_AT, SENT_AT, RECEIVING_AT, RECEIVED_AT):
        np.maximum(table[line], other[line], out=table[line])
    for totals, changed_at, seconds in FADING:
        at = np.maximum(table[changed_at], other[changed_at])
        for total in totals:
            table[total] *= np.exp((table[changed_at] - at) / seconds)
            table[total] += other[total] * np.exp((other[changed_at] - at) / seconds)
        table[changed_at] = at
