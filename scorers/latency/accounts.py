"""Own requests of a cost model: what is under way on each endpoint, and since when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from ...indexer.prefix import Prefix
from ..core.candidates import Candidates, Directory
from ..core.columns import FloatArray, RowArray
from ..core.decision import Decision
from ..core.shared import Contribution, SharedSums
from .held_prompts import HeldPrompts, Sharing, held_tokens
from .lines import (
    BOOKED,
    LOG_PACE,
    N_AHEAD,
    N_LINES,
    N_PACE,
    OVERDUE,
    READY_AT,
    SENT_AT,
    SINCE,
    TIMES,
    TOKENS_AHEAD,
    TOKENS_HELD,
    TOKENS_IN_USE,
    WORK,
)
from .open_request import OpenRequest
from .paces import common_pace, learn_pace
from .recent_work import add_work, take_back_work
from .releases import Releases
from .sibling_accounts import SiblingAccounts
from .transfers import Delays, add_transfer, take_back_transfer

MAX_OPEN = 65_536
"""Most requests that are followed until their end; the oldest is forgotten first. More are never under way."""

MAX_ROWS = 16_384
"""Most endpoints that siblings may name."""

SPARE_ROWS = 1024
"""Removed endpoints that are remembered, since they may come back; as many as there are others, if these are more. Siblings have them too."""

FIRST_ROWS = 16
"""Rows of a new table, which doubles when it is full."""

UNSETTLED_S = 0.025
"""Longest time until a sibling has received a pick: twice the time for which changes are collected, and 15 ms on the way."""


class Accounts:
    """What a cost model knows of each endpoint from the requests that it saw being picked. Bounded.

    Lines, one number per endpoint: of the requests whose response has not begun the work, the tokens that are booked until its first
    byte, their number, the tokens of those blocks of their prompts that none holds whose response has begun, and the monotonic seconds since which the first of them
    is computed; the tokens of the blocks that those hold whose response has begun, both without what several share; decayed
    milliseconds of prompt work with the time of their last change; the logarithm of the endpoint's pace with the number of observations
    behind it; the sum and number of the paces that this process has observed, from which its siblings learn the same; and the monotonic
    seconds at which all prompts there are expected to be computed, those for other endpoints to be sent, and those from others to be
    received, since when and until when; the decayed tokens that were to be computed there, with the time of their last change; the
    tokens of the present prompt whose blocks requests hold there, NaN if that is unknown; the part of the decayed tokens that new
    prompts had; and the part of the booked tokens of responses that are taken to have begun before their first byte. Requests whose
    prompt another endpoint computes have booked tokens and tokens of prompts, and no part in the others.
    """

    def __init__(self) -> None:
        self._table: FloatArray = np.zeros((N_LINES, FIRST_ROWS))
        self._cells = _cells_of(self._table)
        """View of `_table`: a single number is read and written faster than through numpy."""
        self._rows: dict[str, int] = {}
        self._names: list[str] = []
        """By row."""
        self._directory: Directory | None = None
        self._places: RowArray = np.empty(0, np.intp)
        self._open: dict[int, OpenRequest] = {}
        self._latest: dict[int, OpenRequest] = {}
        """The last request by row, which siblings may not have received."""
        self.plans_prompts = False
        """Whether to keep when prompts are computed, which only pairs of endpoints ask for."""
        self._due: list[tuple[float, int]] = []
        """Heap of the requests whose response shows no beginning, with `OpenRequest.due_at`, by id of the decision; some have ended."""
        self._prompts = HeldPrompts()
        self.releases = Releases()
        """When the requests whose response has begun release their blocks."""
        self._siblings = SiblingAccounts()
        self.on_forgotten: Callable[[OpenRequest], None] = lambda _: None
        """Called with a request that is not followed any more although it has not ended."""
        self.shared = SharedSums(self._own, self._add_up, lambda: tuple(self._rows))
        """The lines of each endpoint, times as ages."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def n_due(self) -> int:
        """Responses of which is remembered when they are due."""
        return len(self._due)

    def sharing(self, prefix: Prefix | None) -> list[Sharing] | None:
        """See `HeldPrompts.sharing`, of own requests under way."""
        return self._prompts.sharing(prefix)

    def columns(self, candidates: Candidates, sharing: Sequence[Sharing] | None = None) -> FloatArray:
        """Return the lines of these endpoints, shape (21, n). Cost: O(n); after a change of the fleet in Python.

        Args:
            candidates: the endpoints.
            sharing: which requests share leading tokens of the present prompt, None if they are unknown.
        """
        places = self.rows(candidates)
        table = self._table.take(places, axis=1)
        if self._siblings:
            self._siblings.add_to(table, places)
        table[TOKENS_IN_USE] = held_tokens(sharing, self._table.shape[1]).take(places)
        return table

    def rows(self, candidates: Candidates) -> RowArray:
        """Return the rows of these endpoints, new ones for new names. Cost: O(1) for all endpoints of a known fleet, else O(n)."""
        if candidates.directory is not self._directory:
            self._follow(candidates.directory)
        return self._places if candidates.rows is None else self._places[candidates.rows]

    def row(self, name: str) -> int:
        """Return the row of an endpoint, a new one for a new name."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self._rows)
            self._names.append(name)
            if row == self._table.shape[1]:
                self._table = np.hstack([self._table, np.zeros_like(self._table)])
                self._cells = _cells_of(self._table)
        return row

    def open(self, request: OpenRequest, *, busy_ms: float, now: float, prefix: Prefix | None = None) -> None:
        """Count a request that was sent to an endpoint.

        Args:
            request: the request.
            busy_ms: time that the endpoint takes for its prompt.
            now: monotonic seconds.
            prefix: block keys of the prompt, so that others are known to share them; None if they are unknown.
        """
        cells, row, match = self._cells, request.row, request.decision.best.prefix
        block_size = match.block_size if match is not None else 0
        request.busy_ms = busy_ms
        request.prompt = self._prompts.add(row, prefix, block_size, n_tokens=request.n_held)
        if request.computes:
            add_work(cells, request, now=now)
            if self.plans_prompts:
                self._plan(row, work=request.work, busy_s=busy_ms / 1000.0, now=now)
            if cells[N_AHEAD, row] == 0 and not self._siblings.number(N_AHEAD, row):
                cells[SINCE, row] = now
            cells[N_AHEAD, row] += 1
            cells[WORK, row] += request.work
        cells[BOOKED, row] += request.tokens
        self._count_tokens(row)
        self._open[id(request.decision)] = request
        if request.due_at < math.inf:
            self._await(request)
        if self.shared.on_change is not None:
            self._latest[row] = request
        self._note(row)
        if len(self._open) > MAX_OPEN:
            forgotten = self._open.pop(next(iter(self._open)))
            self._drop(forgotten)
            self.on_forgotten(forgotten)

    def find(self, decision: Decision) -> OpenRequest | None:
        """Return the request of a decision, None if it was not opened or has ended."""
        return self._open.get(id(decision))

    def begun(self, request: OpenRequest, *, now: float) -> None:
        """Note that a response began: the endpoint computes the next prompt since then, and holds the blocks of this one."""
        if request.row < 0 or not request.is_booked:
            return
        self._unbook(request)
        self._note(request.row)
        if not request.has_begun:
            self._begin(request, since=now, now=now)

    def begin_due(self, *, now: float) -> None:
        """Take the responses for begun that are due, of those whose first byte comes with their end."""
        while self._due and self._due[0][0] <= now:
            due_at, key = heapq.heappop(self._due)
            request = self._open.get(key)
            if request is None or request.due_at != due_at or request.has_begun:
                continue  # it has ended, and its decision's id may be that of another
            self._cells[OVERDUE, request.row] += request.tokens
            self._begin(request, since=max(due_at, self._cells[SINCE, request.row]), now=due_at)

    def _await(self, request: OpenRequest) -> None:
        """Remember when a response is due. Cost: O(log n)."""
        heapq.heappush(self._due, (request.due_at, id(request.decision)))
        if len(self._due) > 2 * len(self._open) + SPARE_ROWS:  # most have ended before they were due
            waiting = (each for each in self._open.values() if each.due_at < math.inf and not each.has_begun)
            self._due = [(each.due_at, id(each.decision)) for each in waiting]
            heapq.heapify(self._due)

    def _begin(self, request: OpenRequest, *, since: float, now: float) -> None:
        self._leave(request)
        request.has_begun = True
        if request.computes:
            self._cells[SINCE, request.row] = since
        if request.prompt is not None:
            self._prompts.begun(request.prompt)
        self._count_tokens(request.row)
        request.place = self.releases.add(request.row, now=now, n_tokens=request.n_held)
        self._note(request.row)

    def sent(self, request: OpenRequest, receiver: int, *, transfer_ms: float) -> Delays:
        """Note that the blocks of the last planned prompt are sent, see `add_transfer`."""
        delays = add_transfer(self._cells, request, receiver, transfer_s=transfer_ms / 1000.0)
        self._note(request.row)
        self._note(receiver)
        return delays

    def unsent(self, sender: int, receiver: int, delays: Delays) -> None:
        """Note that blocks are not sent, see `take_back_transfer`."""
        take_back_transfer(self._cells, sender, receiver, delays)
        self._note(sender)
        self._note(receiver)

    def refused(self, request: OpenRequest) -> None:
        """Take back the work of a request whose prompt its endpoint did not compute; it is still to end."""
        if request.computes:
            take_back_work(self._cells, request)
            self._note(request.row)

    def ended(self, decision: Decision) -> OpenRequest | None:
        """Forget a request, and return it; None if it is not known."""
        request = self._open.pop(id(decision), None)
        if request is not None:
            if self._latest.get(request.row) is request:
                del self._latest[request.row]
            self._drop(request)
        return request

    def pace(self, row: int) -> float:
        """Return the factor of the times of an endpoint; 1 if its row is -1."""
        return math.exp(self._cells[LOG_PACE, row]) if row >= 0 else 1.0

    def relative_pace(self, row: int) -> float:
        """Return the pace of an endpoint relative to `common_pace`; 1 before its first observation."""
        if row < 0 or not self._cells[N_PACE, row]:
            return 1.0
        return math.exp(self._cells[LOG_PACE, row] - common_pace(self._table))

    def relative_paces(self, columns: FloatArray) -> FloatArray:
        """Return the same by endpoint from these `columns`."""
        differences = columns[LOG_PACE] - common_pace(self._table)
        return np.exp(np.where(columns[N_PACE] > 0.0, differences, 0.0))

    def learn_pace(self, row: int, log_error: float) -> float:
        """Move the pace of an endpoint towards an observed one, and return it.

        Args:
            row: of the endpoint; -1 for none, whose pace is 1.
            log_error: logarithm of observed by predicted time, the pace included.
        """
        if row < 0:
            return 1.0
        column = self._table[:, row]
        learn_pace(column, log_error)
        self._note(row)
        return math.exp(float(column[LOG_PACE]))

    def _plan(self, row: int, *, work: float, busy_s: float, now: float) -> None:
        """Expect a prompt to be computed behind those of all processes, in `busy_s` seconds."""
        cells, siblings = self._cells, self._siblings
        own = cells[READY_AT, row]
        begins_at = max(now, own, siblings.number(READY_AT, row))
        if work > 0.0:  # no more is ahead than prompts that are not known to be computed: others were early
            ahead = cells[WORK, row] + siblings.number(WORK, row)
            begins_at = min(begins_at, now + ahead / work * busy_s)
        cells[READY_AT, row] = begins_at + busy_s
        cells[SENT_AT, row] -= max(0.0, own - begins_at)  # transfers begin when prompts are ready

    def _drop(self, request: OpenRequest) -> None:
        if request.prompt is not None:
            self._prompts.remove(request.prompt, has_begun=request.has_begun)
        if request.has_begun:
            self.releases.remove(request.row, request.place)
        else:
            self._leave(request)
        if request.is_booked:
            self._unbook(request)
        self._count_tokens(request.row)
        self._note(request.row)

    def _leave(self, request: OpenRequest) -> None:
        """Take a request off those ahead."""
        cells, row = self._cells, request.row
        if request.computes:
            cells[N_AHEAD, row] -= 1
            # rounding must not leave less than nothing, which siblings take for nonsense
            cells[WORK, row] = max(0.0, cells[WORK, row] - request.work) if cells[N_AHEAD, row] else 0.0

    def _unbook(self, request: OpenRequest) -> None:
        request.is_booked = False
        if request.has_begun:
            self._cells[OVERDUE, request.row] -= request.tokens
        # whole numbers, which add up without rounding errors
        self._cells[BOOKED, request.row] -= request.tokens

    def _count_tokens(self, row: int) -> None:
        """Follow the prompts on an endpoint."""
        total, held = self._prompts.n_tokens(row)
        self._cells[TOKENS_HELD, row], self._cells[TOKENS_AHEAD, row] = held, total - held

    def _follow(self, directory: Directory) -> None:
        if len(self._rows) > len(directory) + max(SPARE_ROWS, len(directory)):
            self._forget_others(frozenset(directory.names))
        self._places = np.array([self.row(name) for name in directory.names], np.intp)
        self._directory = directory

    # -- other processes ------------------------------------------------------------------------------------------

    def _note(self, row: int) -> None:
        if self.shared.on_change is not None:
            self.shared.note(self._names[row])

    def _own(self, name: str, now: float) -> Sequence[float] | None:
        row = self._rows.get(name)
        if row is None:
            return None
        numbers: list[float] = self._table[:, row].tolist()
        if not any(numbers):
            return None
        for line in TIMES:
            numbers[line] = now - numbers[line]
        return numbers

    def _add_up(self, name: str, siblings: Sequence[Contribution]) -> None:
        if name in self._rows or len(self._rows) < MAX_ROWS:
            row = self.row(name)
            if self._siblings.set(row, siblings):
                self._note_added(row, now=max(each.at for each in siblings))
            self._siblings.teach_pace(row, siblings, self._table[:, row])

    def _note_added(self, row: int, *, now: float) -> None:
        """Note that siblings have added work to an endpoint, perhaps before they received the last request sent there."""
        latest = self._latest.pop(row, None)
        if latest is not None and now - latest.decision.at < UNSETTLED_S:
            latest.is_foreseen = False

    def _forget_others(self, names: frozenset[str]) -> None:
        """Close up the rows of endpoints that are not in the fleet and have no request under way."""
        used = {each.row for each in self._open.values()}
        kept = [(name, row) for name, row in self._rows.items() if name in names or row in used]
        moved = {row: new for new, (_, row) in enumerate(kept)}
        forgotten = self._rows.keys() - {name for name, _ in kept}
        table = np.zeros((N_LINES, max(FIRST_ROWS, len(kept))))
        table[:, : len(kept)] = self._table[:, [row for _, row in kept]]
        self._table, self._cells = table, _cells_of(table)
        self._rows = {name: moved[row] for name, row in kept}
        self._names = [name for name, _ in kept]
        self._siblings.move(moved)
        self.releases.move(moved)
        self._latest.clear()
        if self.shared.on_change is not None:
            for name in forgotten:
                self.shared.note(name)
        for request in self._open.values():
            request.row = moved[request.row]
            if request.prompt is not None:
                request.prompt = self._prompts.move(request.prompt, request.row, has_begun=request.has_begun)
        for row in used & moved.keys():  # prompts that moved may be followed no more: only so many are
            self._count_tokens(moved[row])


def _cells_of(table: FloatArray) -> memoryview[float]:
    return table.data.cast("B").cast("d", table.shape)
