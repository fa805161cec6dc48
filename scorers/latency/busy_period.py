"""Busy periods of endpoints: when the prompts that are sent there are computed, one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from .lines import READY_AT, SENT_AT, WORK
from .sibling_accounts import SiblingAccounts


class BusyPeriod:
    """Time in which an endpoint computes one prompt after the other, without a pause.

    A prompt that is ready early saves the same time for all behind it, but none of them begins before its pick. The times of those
    behind show the same time again: what the period has saved is the largest difference between planned and real times.

    Attributes:
        saved_s: seconds by which the last prompt is expected before its planned time.
    """

    __slots__ = ("_n", "_prompts", "saved_s")

    def __init__(self) -> None:
        self.saved_s, self._n = 0.0, 0
        self._prompts: dict[int, tuple[float, float]] = {}
        """By number, the planned time, and the most that earlier prompts can save for this one and those behind it."""

    def add(self, ready_at: float, *, slack_s: float) -> PlannedPrompt:
        """Add a prompt that is expected then, and at most `slack_s` earlier."""
        planned = PlannedPrompt(self, self._n, ready_at + self.saved_s)
        self._prompts[self._n] = planned.at, self.saved_s + slack_s
        self._n += 1
        return planned

    def remove(self, planned: PlannedPrompt) -> None:
        """Forget a prompt."""
        self._prompts.pop(planned.number, None)

    def saved_by(self, planned: PlannedPrompt, *, by: float) -> float:
        """Return what is saved for the last prompt if one was ready `by` then. Cost: O(prompts in the period)."""
        most = min((most for at, most in self._prompts.values() if at > planned.at), default=math.inf)
        return min(planned.at - by, most)


class PlannedPrompt(NamedTuple):
    """Prompt of a busy period, its number there, and the monotonic seconds at which it is ready if none before it is early."""

    period: BusyPeriod
    number: int
    at: float


class BusyPeriods:
    """The present busy period of each endpoint, by row of `Accounts`."""

    def __init__(self) -> None:
        self._periods: dict[int, BusyPeriod] = {}

    def plan(
        self,
        cells: memoryview[float],
        row: int,
        siblings: SiblingAccounts,
        *,
        work: float,
        busy_s: float,
        now: float,
    ) -> PlannedPrompt:
        """Add a prompt to those that an endpoint computes, behind those of all processes.

        Args:
            cells: own lines by row, changed in place.
            row: of the endpoint.
            siblings: accounts of the other processes.
            work: of the prompt, see `OpenRequest`.
            busy_s: seconds that it takes.
            now: monotonic seconds.
        """
        own = cells[READY_AT, row]
        begins_at = max(now, own, siblings.number(READY_AT, row))
        if work > 0.0:  # no more is ahead than the prompts that are not known to be computed
            ahead = cells[WORK, row] + siblings.number(WORK, row)
            begins_at = min(begins_at, now + ahead / work * busy_s)
        period = self._periods.setdefault(row, BusyPeriod())
        self._save(cells, row, period.saved_s + own - begins_at)
        if begins_at <= now:
            period = self._periods[row] = BusyPeriod()
        cells[READY_AT, row] = begins_at + busy_s
        # what own prompts save is not known to be saved for those of siblings that are between them and this one
        return period.add(begins_at + busy_s, slack_s=begins_at - now if own >= begins_at else 0.0)

    def computed(self, cells: memoryview[float], row: int, planned: PlannedPrompt, *, by: float) -> None:
        """Expect the prompts behind one that was ready by that time sooner, if it was early."""
        if self._periods.get(row) is planned.period:
            self._save(cells, row, planned.period.saved_by(planned, by=by))

    def move(self, rows: Mapping[int, int]) -> None:
        """Follow new numbers of the rows; rows that are not named are forgotten."""
        self._periods = {rows[row]: each for row, each in self._periods.items() if row in rows}

    def _save(self, cells: memoryview[float], row: int, seconds: float) -> None:
        period = self._periods[row]
        more = seconds - period.saved_s
        if more > 0.0:
            period.saved_s = seconds
            cells[READY_AT, row] -= more
            cells[SENT_AT, row] -= more  # transfers begin when prompts are ready
