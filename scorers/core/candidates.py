"""The endpoints that can take one request, as a table: a row per endpoint, a column per quantity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import numpy as np

from ...events.stream import Trust
from .columns import CodeArray, FloatArray, Mask, RowArray
from .model import Adapters, Candidate, InFlightLoad, Load, RequestView
from .operations import float_cells
from .predictions import Predictions
from .prefix_columns import PrefixColumns

T = TypeVar("T")

(
    WAITING,
    RUNNING,
    REQUESTS,
    KV_UTILIZATION,
    UPDATED_AT,
    TOKENS,
    CREDIT,
    GPU_TOKENS,
    GPU_CACHED,
    GONE,
) = range(10)
"""Rows of `Candidates.state`."""

N_STATE = 10
"""Number of rows of `Candidates.state`."""

TRUSTS = tuple(Trust)
"""Trust by its code in `Candidates.trust`."""

TRUST_CODES: Mapping[Trust, int] = MappingProxyType({trust: code for code, trust in enumerate(TRUSTS)})
"""Code of a trust."""


_NO_ATTRIBUTES: Mapping[str, float] = MappingProxyType({})


class AttributeColumns(NamedTuple):
    """Scraped attributes of endpoints.

    Attributes:
        lines: name of an attribute -> its line in `values`.
        values: shape (attributes, n), NaN if unknown.
    """

    lines: Mapping[str, int]
    values: FloatArray

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> AttributeColumns | None:
        """Return the columns of all attributes that any endpoint has, None if there are none."""
        names = sorted({name for each in candidates for name in each.attributes})
        if not names:
            return None
        values = [[each.attributes.get(name, math.nan) for each in candidates] for name in names]
        return cls({name: line for line, name in enumerate(names)}, np.array(values, np.float64))

    def known(self, row: int) -> Mapping[str, float]:
        """Return the known attributes of one endpoint."""
        cells = ((name, float(self.values[line, row])) for name, line in self.lines.items())
        return {name: value for name, value in cells if not math.isnan(value)}


class LabelColumn(NamedTuple):
    """The values of one label.

    Attributes:
        values: distinct values, None for endpoints without the label.
        codes: position in `values`, one per row.
    """

    values: tuple[str | None, ...]
    codes: RowArray

    def mapped(self, function: Callable[[str | None], float]) -> FloatArray:
        """Return a number per row. Cost: one call per distinct value."""
        return np.array([function(value) for value in self.values], np.float64)[self.codes]

    def where(self, function: Callable[[str | None], bool]) -> Mask:
        """Return a mask of rows. Cost: one call per distinct value."""
        return np.array([function(value) for value in self.values], np.bool_)[self.codes]


class Directory:
    """What seldom changes of endpoints. Immutable, so that decisions share it; a change makes a new one.

    Args:
        names: stable names from configuration or discovery.
        addresses: `host:port` that serves requests, one per endpoint; empty for a row that is in no table.
        labels: labels from configuration or discovery, one mapping per endpoint.
    """

    __slots__ = ("_labelled", "_rows", "addresses", "labels", "names")

    def __init__(
        self, names: Sequence[str], addresses: Sequence[str], labels: Sequence[Mapping[str, str]]
    ) -> None:
        self.names, self.addresses, self.labels = tuple(names), tuple(addresses), tuple(labels)
        self._labelled: dict[str, LabelColumn] = {}
        self._rows: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def labelled(self, key: str) -> LabelColumn:
        """Return the values of a label.

        Cost: O(endpoints) once per key, then O(1). Keys come from the configuration, so there are few.
        """
        column = self._labelled.get(key)
        if column is None:
            values: dict[str | None, int] = {}
            codes = [values.setdefault(labels.get(key), len(values)) for labels in self.labels]
            column = self._labelled[key] = LabelColumn(tuple(values), np.array(codes, np.intp))
        return column

    def row(self, name: str, rows: RowArray | None = None) -> int | None:
        """Return the position of a name among these rows, None if it is not there; `rows` is None for all.

        Cost: O(endpoints) once, then O(1), or O(rows).
        """
        if self._rows is None:
            self._rows = {each: row for row, each in enumerate(self.names)}
        place = self._rows.get(name)
        if place is None or rows is None:
            return place
        found = np.flatnonzero(rows == place)
        return int(found[0]) if len(found) else None

    @staticmethod
    def select(column: Sequence[T], rows: RowArray | None) -> Sequence[T]:
        """Return a column of the directory by these rows; `rows` is None for all."""
        if rows is None:
            return column
        wanted: list[int] = rows.tolist()
        return [column[row] for row in wanted]


class Candidates:
    """Table of the endpoints that can take one request. Plugins read it; its arrays are not theirs to change.

    It shows one moment: nothing of it changes with the fleet.

    Args:
        directory: names, addresses and labels.
        state: float64 of shape (10, n): waiting and running requests of the last scrape; requests sent by this process that
            have not ended; part of the GPU blocks that running requests hold (0 to 1), and monotonic seconds of the scrape;
            uncached prompt tokens of requests sent by this process whose response has not begun; the credit of prefix
            scores (0 to 1); the tokens for which the GPU blocks have room, 0 if the engine does not tell; those whose blocks
            were cached there at the scrape by the index; and how many of the requests of the scrape have ended since, of which this
            process knows. What comes from the scrape is NaN if the load is unknown or stale.
        trust: int8 of length n, trust in the events from which prefixes are known; codes of `TRUSTS`.
        prefix: cached prefixes of the request, None if it has no block keys.
        adapters: LoRA adapters by row of the directory, None if an endpoint does not report them. Without a meaning in rows
            whose load is unknown. Empty if no endpoint reports any.
        attributes: scraped attributes, None if none are configured.
        rows: rows of the directory in this table, in its order; None for all. Decisions keep it, so it never changes.
        predictions: expected times of the request, None if the profile has no predictor or nothing is predicted.

    Attributes:
        directory: as above; `names` and the like select its rows.
        rows: as above.
        state: as above; `waiting` and the like are its rows.
        trust: as above.
        prefix: as above.
        attributes: as above; `attribute` returns one of them.
        predictions: as above.
    """

    __slots__ = ("_adapters", "attributes", "directory", "predictions", "prefix", "rows", "state", "trust")

    def __init__(
        self,
        directory: Directory,
        state: FloatArray,
        trust: CodeArray,
        prefix: PrefixColumns | None,
        *,
        adapters: Sequence[Adapters | None] = (),
        attributes: AttributeColumns | None = None,
        rows: RowArray | None = None,
        predictions: Predictions | None = None,
    ) -> None:
        self.directory, self.state, self.trust, self.prefix = directory, state, trust, prefix
        self.rows, self._adapters, self.attributes = rows, adapters, attributes
        self.predictions = predictions

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> Candidates:
        """Return the table of these endpoints. Cost: O(endpoints), slow; for tests, the simulator and reports."""
        nan = math.nan
        state = np.empty((N_STATE, len(candidates)))
        for row, each in enumerate(candidates):
            load, flying = each.load, each.in_flight
            state[:, row] = (
                (nan, nan, flying.requests, nan, nan, flying.tokens, each.credit, nan, nan, 0.0)
                if load is None
                else (
                    load.waiting, load.running, flying.requests, load.kv_utilization, load.updated_at, flying.tokens,
                    each.credit, load.gpu_tokens, load.gpu_cached_tokens, 0.0,
                )
            )  # fmt: skip
        return cls(
            Directory(
                [each.name for each in candidates],
                [each.address for each in candidates],
                [each.labels for each in candidates],
            ),
            state,
            np.array([TRUST_CODES[each.trust] for each in candidates], np.int8),
            PrefixColumns.of([each.prefix for each in candidates]),
            adapters=[each.load.adapters if each.load is not None else None for each in candidates],
            attributes=AttributeColumns.of(candidates),
        )

    def __len__(self) -> int:
        return len(self.trust)

    def __iter__(self) -> Iterator[Candidate]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, row: int) -> Candidate:
        """Return one row as an object, which does not change with the table. Cost: about 2 us."""
        waiting, running, requests, used, updated_at, tokens, credit, gpu_tokens, cached, _ = float_cells(
            self.state, row
        )
        place = self._place(row)
        directory = self.directory
        load = None
        if updated_at == updated_at:  # noqa: PLR0124 - false for NaN alone, and ten times as fast as `isnan`
            adapters = self._adapters[place] if self._adapters else None
            load = Load(
                int(waiting), int(running), used, updated_at, adapters,
                gpu_tokens=int(gpu_tokens), gpu_cached_tokens=int(cached),
            )  # fmt: skip
        return Candidate(
            directory.names[place],
            directory.addresses[place],
            directory.labels[place],
            load,
            self.prefix[row] if self.prefix is not None else None,
            credit,
            InFlightLoad(int(requests), int(tokens)),
            TRUSTS[int(self.trust[row])],
            self.attributes.known(row) if self.attributes is not None else _NO_ATTRIBUTES,
        )

    # -- columns --------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> FloatArray:
        """Requests waiting in the engine at the last scrape; NaN if unknown."""
        column: FloatArray = self.state[WAITING]
        return column

    @property
    def running(self) -> FloatArray:
        """Requests that the engine served at the last scrape; NaN if unknown."""
        column: FloatArray = self.state[RUNNING]
        return column

    @property
    def kv_utilization(self) -> FloatArray:
        """Part of the GPU blocks that running requests hold, 0 to 1; NaN if unknown."""
        column: FloatArray = self.state[KV_UTILIZATION]
        return column

    @property
    def updated_at(self) -> FloatArray:
        """Monotonic seconds of the last scrape; NaN if the load is unknown."""
        column: FloatArray = self.state[UPDATED_AT]
        return column

    @property
    def in_flight_requests(self) -> FloatArray:
        """Requests sent by this process that have not ended."""
        column: FloatArray = self.state[REQUESTS]
        return column

    @property
    def in_flight_tokens(self) -> FloatArray:
        """Uncached prompt tokens of requests sent by this process whose response has not begun."""
        column: FloatArray = self.state[TOKENS]
        return column

    @property
    def credit(self) -> FloatArray:
        """Credit of prefix scores, 0 to 1."""
        column: FloatArray = self.state[CREDIT]
        return column

    @property
    def names(self) -> Sequence[str]:
        """Stable names from configuration or discovery."""
        return self._selected(self.directory.names)

    @property
    def addresses(self) -> Sequence[str]:
        """`host:port` that serves requests."""
        return self._selected(self.directory.addresses)

    @property
    def labels(self) -> Sequence[Mapping[str, str]]:
        """Labels from configuration or discovery."""
        return self._selected(self.directory.labels)

    @property
    def has_adapters(self) -> bool:
        """Whether any endpoint reports LoRA adapters."""
        return bool(self._adapters)

    @property
    def adapters(self) -> Sequence[Adapters | None]:
        """LoRA adapters, None if the load is unknown or the engine does not report them."""
        if not self._adapters:
            return (None,) * len(self)
        known = self.updated_at == self.updated_at  # false for NaN
        return [
            each if is_known else None
            for each, is_known in zip(self._selected(self._adapters), known, strict=True)
        ]

    def attribute(self, name: str) -> FloatArray:
        """Return a scraped attribute, NaN if unknown."""
        columns = self.attributes
        if columns is None or name not in columns.lines:
            return np.full(len(self), np.nan)
        column: FloatArray = columns.values[columns.lines[name]]
        return column

    def labelled(self, key: str) -> LabelColumn:
        """Return the values of a label. Its values may include some that no row of this table has."""
        column = self.directory.labelled(key)
        return column if self.rows is None else LabelColumn(column.values, column.codes[self.rows])

    def row(self, name: str) -> int | None:
        """Return the row of a name, None if it is not in the table."""
        return self.directory.row(name, self.rows)

    def name(self, row: int) -> str:
        """Return the name in a row. Cost: O(1)."""
        return self.directory.names[self._place(row)]

    def uncached_tokens(self, request: RequestView) -> FloatArray:
        """Return the prompt tokens that each endpoint is expected to compute, 0 if nothing is known of the prompt."""
        if self.prefix is None:
            return np.full(len(self), float(request.n_tokens))
        uncached: FloatArray = request.n_tokens - np.floor(self.credit * self.prefix.usable_tokens)
        return np.maximum(0.0, uncached)

    # -- other tables ---------------------------------------------------------------------------------------------

    def take(self, rows: RowArray) -> Candidates:
        """Return the table of some rows, in the order of `rows`: row numbers, not a mask. It has its own arrays."""
        return Candidates(
            self.directory,
            self.state[:, rows],
            self.trust[rows],
            self.prefix.take(rows) if self.prefix is not None else None,
            adapters=self._adapters,
            attributes=self.attributes._replace(values=self.attributes.values[:, rows])
            if self.attributes is not None
            else None,
            rows=rows if self.rows is None else self.rows[rows],
            predictions=self.predictions.take(rows) if self.predictions is not None else None,
        )

    def predicted(self, predictions: Predictions | None) -> Candidates:
        """Return the same table with these predictions in place of its own; both share their other arrays."""
        return Candidates(
            self.directory,
            self.state,
            self.trust,
            self.prefix,
            adapters=self._adapters,
            attributes=self.attributes,
            rows=self.rows,
            predictions=predictions,
        )

    def _place(self, row: int) -> int:
        return row if self.rows is None else int(self.rows[row])

    def _selected(self, column: Sequence[T]) -> Sequence[T]:
        return self.directory.select(column, self.rows)
