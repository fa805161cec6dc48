"""The rows of endpoints that a request may use."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..scorers.core.candidates import Directory
from ..scorers.core.columns import RowArray

MAX_CACHED = 64
"""Selections kept; beyond, all are dropped. Requests of one gateway name the same few, one per pool and model."""


class Selections:
    """Rows by subset of addresses and by labels, for endpoints that do not change.

    Args:
        directory: the endpoints; one without an address takes no requests.
    """

    def __init__(self, directory: Directory) -> None:
        self._addresses, self._labels = directory.addresses, directory.labels
        self._cached: dict[tuple[frozenset[str] | None, frozenset[tuple[str, str]]], RowArray | None] = {}
        self._by_address: dict[str, list[int]] | None = None
        self._all: RowArray | None = None
        if "" in self._addresses:
            self._all = np.array([row for row, each in enumerate(self._addresses) if each], np.intp)

    def rows(self, subset: frozenset[str] | None, labels: Mapping[str, str] | None) -> RowArray | None:
        """Return the rows that a request may use, in order; None for all.

        Args:
            subset: addresses allowed (`host:port`, or `host` for every port); None allows all.
            labels: labels that an endpoint must have; None or empty allows all.
        Cost: O(1) for a selection that was made before, else O(subset) or O(endpoints).
        """
        if subset is None and not labels:
            return self._all
        key = subset, frozenset(labels.items()) if labels else frozenset[tuple[str, str]]()
        if key not in self._cached:
            if len(self._cached) >= MAX_CACHED:
                self._cached.clear()
            self._cached[key] = self._selected(subset, labels or {})
        return self._cached[key]

    def _selected(self, subset: frozenset[str] | None, labels: Mapping[str, str]) -> RowArray | None:
        rows = range(len(self._addresses)) if subset is None else sorted(self._rows_in(subset))
        wanted = labels.items()
        found = [row for row in rows if self._addresses[row] and wanted <= self._labels[row].items()]
        return None if len(found) == len(self._addresses) else np.array(found, np.intp)

    def _rows_in(self, subset: frozenset[str]) -> set[int]:
        if self._by_address is None:
            self._by_address = {}
            for row, address in enumerate(self._addresses):
                for text in (address, address.rpartition(":")[0]) if address else ():
                    self._by_address.setdefault(text, []).append(row)
        return {row for text in subset for row in self._by_address.get(text, ())}
