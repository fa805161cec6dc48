"""State of all endpoints as columns, which decisions read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..events.stream import Trust
from ..indexer.figures import BLOCK_SIZE, N_BLOCKS, RANK
from ..indexer.ledger import RankLedger
from ..indexer.match_columns import MatchColumns
from ..scorers.core.candidates import (
    CREDIT,
    GONE,
    GPU_CACHED,
    GPU_TOKENS,
    KV_UTILIZATION,
    N_STATE,
    REQUESTS,
    RUNNING,
    TOKENS,
    TRUST_CODES,
    UPDATED_AT,
    WAITING,
    AttributeColumns,
    Candidates,
    Directory,
)
from ..scorers.core.columns import CodeArray, FloatArray, RowArray
from ..scorers.core.model import Adapters, InFlightLoad, Load
from ..scorers.core.prefix_columns import PrefixColumns
from .selection import Selections

FROM_SCRAPES = (WAITING, RUNNING, KV_UTILIZATION, UPDATED_AT, GPU_TOKENS, GPU_CACHED)
"""Lines of the state that are unknown while the load is."""

NO_EVENTS = 1.0
"""Credit of a rank that publishes no events: what is known of it comes from elsewhere."""


class FleetTable:
    """A row per endpoint, in the order in which they were added; changed in place. For one event loop; no locks.

    Rows of removed endpoints are closed up before the next decision, all at once.

    Args:
        trust_credit: see `FleetSettings`; a missing trust has credit 1.
        ledgers_of: returns what the index knows of the ranks of an endpoint.
    """

    def __init__(
        self, trust_credit: Mapping[Trust, float], ledgers_of: Callable[[str], Iterable[RankLedger]]
    ) -> None:
        self._credits, self._ledgers_of = trust_credit, ledgers_of
        self._state: FloatArray = np.empty((N_STATE, 1))
        self._cells = _cells_of(self._state)
        """The same numbers: writing one costs half as much as through numpy."""
        self._trust: CodeArray = np.empty(1, np.int8)
        self._n_known: list[float] = []
        """By row, the requests of the last scrape that were known without it."""
        self._used_state: FloatArray = self._state[:, :0]
        """The part of `_state` with endpoints; valid while `_directory` is."""
        self._seen_trust: CodeArray | None = None
        """A copy of `_trust` for decisions, valid until a trust changes; None if there is none."""
        self._names: list[str | None] = []
        """Names by row, None for a removed endpoint."""
        self._addresses: list[str | None] = []
        self._labels: list[Mapping[str, str]] = []
        self._adapters: list[Adapters | None] = []
        self._n_adapters = 0
        self._attribute_lines: dict[str, int] = {}
        """Line of each attribute in `_attributes`."""
        self._n_scraped = 0
        """Attributes that come with the load; theirs are the first lines."""
        self._attributes: FloatArray = np.empty((0, 1))
        self._trusts: list[dict[int, Trust]] = []
        """By row, trust in the events of each rank that publishes any."""
        self.rows: dict[str, int] = {}
        """Row of each endpoint; valid until an endpoint is removed."""
        self._n_gone = 0
        self._oldest = math.inf
        """At or before the oldest load, in monotonic seconds."""
        self._directory: Directory | None = None
        self._selections = Selections(Directory((), (), ()))

    def __len__(self) -> int:
        return len(self.rows)

    # -- endpoints ------------------------------------------------------------------------------------------------

    def add(self, name: str, address: str | None, labels: Mapping[str, str]) -> None:
        """Add an endpoint without load, events or requests. Cost: O(1), amortized.

        Args:
            name: unique name.
            address: `host:port` that serves requests, None if it takes none.
            labels: its labels.
        """
        row = len(self._names)
        if row == len(self._trust):
            self._grow()
        self._names.append(name)
        self._addresses.append(address)
        self._labels.append(labels)
        self._adapters.append(None)
        self._trusts.append({})
        self.rows[name] = row
        self._state[:, row] = self._attributes[:, row] = math.nan
        self._state[REQUESTS, row] = self._state[TOKENS, row] = self._state[GONE, row] = 0.0
        self._n_known.append(0.0)
        self._show_trust(row)
        self._directory = None

    def remove(self, name: str) -> None:
        """Remove an endpoint. Cost: O(1), and O(endpoints) once before the next decision."""
        row = self.rows.pop(name)
        self._names[row] = None
        self._set_adapters(row, None)
        self._n_gone += 1
        self._directory = None

    def move(self, name: str, address: str | None) -> None:
        """Replace the address of an endpoint, None for one that takes no requests."""
        self._addresses[self.rows[name]] = address
        self._directory = None

    def relabel(self, name: str, labels: Mapping[str, str]) -> None:
        """Replace the labels of an endpoint."""
        self._labels[self.rows[name]] = labels
        self._directory = None

    # -- state ----------------------------------------------------------------------------------------------------

    def set_load(self, name: str, load: Load) -> None:
        """Show the newest load of an endpoint, with what the index knows then; an unknown name is ignored. Cost: O(ranks)."""
        row = self.rows.get(name)
        if row is None:
            return
        cells = self._cells
        cells[WAITING, row], cells[RUNNING, row] = load.waiting, load.running
        cells[KV_UTILIZATION, row], cells[UPDATED_AT, row] = load.kv_utilization, load.updated_at
        cells[GPU_TOKENS, row], cells[GONE, row] = load.gpu_tokens, 0.0
        self._n_known[row] = min(load.waiting + load.running, cells[REQUESTS, row])
        cells[GPU_CACHED, row] = sum(each.n_gpu_tokens for each in self._ledgers_of(name))
        if load.updated_at < self._oldest:  # noqa: PLR1730 - a third of the cost of `min`
            self._oldest = load.updated_at
        if load.adapters is not self._adapters[row]:
            self._set_adapters(row, load.adapters)
        if load.attributes is not None:
            self.set_attributes(name, load.attributes)

    def use_attributes(self, scraped: Sequence[str], others: Sequence[str] = ()) -> None:
        """Keep these attributes of endpoints, and no others. Known values stay. Cost: O(endpoints).

        Args:
            scraped: attributes that come with the load, and are unknown while it is.
            others: attributes that come from elsewhere.
        """
        before, old = self._attribute_lines, self._attributes
        self._attribute_lines = {name: line for line, name in enumerate((*scraped, *others))}
        self._n_scraped = len(scraped)
        self._attributes = np.full((len(self._attribute_lines), len(self._trust)), math.nan)
        for name, line in self._attribute_lines.items():
            if name in before:
                self._attributes[line] = old[before[name]]

    def set_attributes(self, name: str, values: Mapping[str, float]) -> None:
        """Show attributes of an endpoint, NaN for an unknown one; unknown names are ignored. Cost: O(attributes)."""
        row = self.rows.get(name)
        if row is None:
            return
        for attribute, value in values.items():
            line = self._attribute_lines.get(attribute)
            if line is not None:
                self._attributes[line, row] = value

    def set_in_flight(self, name: str, load: InFlightLoad) -> None:
        """Show the requests in flight of an endpoint; an unknown name is ignored. Cost: O(1)."""
        row = self.rows.get(name)
        if row is not None:
            cells = self._cells
            cells[REQUESTS, row], cells[TOKENS, row] = load.requests, load.tokens
            cells[GONE, row] = max(0.0, self._n_known[row] - load.requests)

    def set_trust(self, name: str, rank: int, trust: Trust | None) -> None:
        """Show the trust in the events of a rank, None if it publishes none. Unknown names are ignored."""
        row = self.rows.get(name)
        if row is None:
            return
        if trust is None:
            self._trusts[row].pop(rank, None)
        else:
            self._trusts[row][rank] = trust
        if rank == 0:
            self._show_trust(row)

    def use_credits(self, trust_credit: Mapping[Trust, float]) -> None:
        """Replace the credit by trust. Cost: O(endpoints)."""
        self._credits = trust_credit
        for row in self.rows.values():
            self._show_trust(row)

    # -- requests -------------------------------------------------------------------------------------------------

    def candidates(
        self,
        matches: MatchColumns | None,
        *,
        now: float,
        stale_after_s: float,
        doubts: Mapping[str, float],
        subset: frozenset[str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Candidates:
        """Return the endpoints that may take a request, in a table that does not change with this one.

        Args:
            matches: what each endpoint holds of the prompt, by row; None if that is unknown.
            now: monotonic seconds.
            stale_after_s: age at which a load is not believed any more.
            doubts: further factors of credit by name.
            subset: see `Selections.rows`.
            labels: see `Selections.rows`.
        Cost: a few operations on columns; O(1) per doubted endpoint, and per endpoint whose best rank is not rank 0.
        """
        directory = self.directory()
        state = self._used_state.copy()
        trust = self._seen_trust if self._seen_trust is not None else self._see_trust()
        attributes: AttributeColumns | None = None
        if self._attribute_lines:
            values = self._attributes[:, : len(trust)].copy()
            attributes = AttributeColumns(self._attribute_lines, values)
        if now - self._oldest > stale_after_s:
            stale = self._drop_stale(state, now, stale_after_s)
            if attributes is not None:
                attributes.values[: self._n_scraped, stale] = math.nan
        if matches is not None and matches.has_ranks:
            trust = self._trust_in_best_ranks(matches, state, trust)
        for name, factor in doubts.items():
            row = self.rows.get(name)
            if row is not None:
                state[CREDIT, row] *= factor
        adapters: Sequence[Adapters | None] = self._adapters.copy() if self._n_adapters else ()
        prefix = prefix_columns(matches) if matches is not None else None
        table = Candidates(directory, state, trust, prefix, adapters=adapters, attributes=attributes)
        rows = self._selections.rows(subset, labels)
        return table if rows is None else table.take(rows)

    def directory(self) -> Directory:
        """Return names, addresses and labels by row, after closing up. Cost: O(endpoints) after a change, else O(1)."""
        if self._directory is None:
            if self._n_gone:
                self._close_up()
            names = [name for name in self._names if name is not None]
            self._directory = Directory(names, [each or "" for each in self._addresses], self._labels)
            self._selections = Selections(self._directory)
            self._used_state = self._state[:, : len(names)]
            self._seen_trust = None
        return self._directory

    def _drop_stale(self, state: FloatArray, now: float, stale_after_s: float) -> RowArray:
        """Forget loads that are stale; returns their rows."""
        updated_at = state[UPDATED_AT]
        self._oldest = float(np.fmin.reduce(updated_at, initial=math.inf))
        stale = np.flatnonzero(now - updated_at > stale_after_s)
        if stale.size:
            for line in FROM_SCRAPES:
                state[line, stale] = math.nan
        return stale

    def _trust_in_best_ranks(self, matches: MatchColumns, state: FloatArray, trust: CodeArray) -> CodeArray:
        """Show the credit of each best rank in `state`, and return its trust."""
        trust = trust.copy()
        for row, rank in enumerate(matches.line(RANK).tolist()):
            if rank:
                trust[row], state[CREDIT, row] = self._shown(self._trusts[row].get(rank))
        return trust

    def _see_trust(self) -> CodeArray:
        self._seen_trust = self._trust[: len(self._names)].copy()
        self._seen_trust.flags.writeable = False  # later decisions share it
        return self._seen_trust

    # -- rows -----------------------------------------------------------------------------------------------------

    def _shown(self, trust: Trust | None) -> tuple[int, float]:
        """Return code and credit of a trust."""
        if trust is None:
            return TRUST_CODES[Trust.DARK], NO_EVENTS
        return TRUST_CODES[trust], self._credits.get(trust, 1.0)

    def _show_trust(self, row: int) -> None:
        self._seen_trust = None
        self._trust[row], self._cells[CREDIT, row] = self._shown(self._trusts[row].get(0))

    def _set_adapters(self, row: int, adapters: Adapters | None) -> None:
        self._n_adapters += (adapters is not None) - (self._adapters[row] is not None)
        self._adapters[row] = adapters

    def _grow(self) -> None:
        capacity = 2 * len(self._trust)
        state, trust = np.empty((N_STATE, capacity)), np.empty(capacity, np.int8)
        state[:, : len(self._trust)], trust[: len(self._trust)] = self._state, self._trust
        self._state, self._trust, self._cells = state, trust, _cells_of(state)
        attributes = np.full((len(self._attribute_lines), capacity), math.nan)
        attributes[:, : self._attributes.shape[1]] = self._attributes
        self._attributes = attributes

    def _close_up(self) -> None:
        kept = [row for row, name in enumerate(self._names) if name is not None]
        n = len(kept)
        self._state[:, :n], self._trust[:n] = self._state[:, kept], self._trust[kept]
        self._attributes[:, :n] = self._attributes[:, kept]
        self._names = [self._names[row] for row in kept]
        self._addresses = [self._addresses[row] for row in kept]
        self._labels = [self._labels[row] for row in kept]
        self._n_known = [self._n_known[row] for row in kept]
        self._adapters = [self._adapters[row] for row in kept]
        self._trusts = [self._trusts[row] for row in kept]
        self.rows = {name: row for row, name in enumerate(self._names) if name is not None}
        self._n_gone = 0


def _cells_of(state: FloatArray) -> memoryview[float]:
    return state.data.cast("B").cast("d", state.shape)


def prefix_columns(matches: MatchColumns) -> PrefixColumns:
    """Return matches in the form that scorers get."""
    n_blocks, block_size = matches.sizes or (matches.line(N_BLOCKS), matches.line(BLOCK_SIZE))
    return PrefixColumns(
        matches.tiers,
        matches.figures[:-2],  # without these two lines
        n_blocks,
        block_size,
        is_known=matches.is_known,
        interleaved=matches.interleaved,
        other_ranks=matches.other_ranks,
        all_but_last=matches.all_but_last,
    )
