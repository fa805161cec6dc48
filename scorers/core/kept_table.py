"""The candidates of a kept decision: copies of their columns in as few bytes as they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from .candidates import N_STATE, UPDATED_AT, Candidates, Directory
from .columns import CodeArray, FloatArray, RowArray, SmallFloats, shown
from .prefix_columns import PrefixColumns

Counts: TypeAlias = NDArray[np.uint16 | np.uint32]

N_COUNTS = 3
"""First rows of `Candidates.state`, which are small numbers: requests waiting, running and in flight."""


class KeptTable(msgspec.Struct, frozen=True):
    """Columns of candidates at one moment; see `Candidates`.

    Attributes:
        directory: names, addresses and labels, shared with other decisions.
        rows: rows of the directory, None for all.
        counts: requests waiting, running and in flight; 0 if unknown.
        figures: KV-cache utilization, age of the load in seconds (NaN if unknown), tokens in flight, and credit.
        trust: codes of trust.
        prefix: prefixes of the rows that hold something, or have another rank than 0; None if the request has no block keys.
        holding: these rows.
    """

    directory: Directory
    rows: RowArray | None
    counts: Counts
    figures: SmallFloats
    trust: CodeArray
    prefix: PrefixColumns | None
    holding: NDArray[np.uint16 | np.uint32] | None

    @classmethod
    def of(cls, candidates: Candidates, *, now: float) -> KeptTable:
        """Copy the columns of a table at the time `now`."""
        state, prefix = candidates.state, candidates.prefix
        counts = np.fmax(state[:N_COUNTS], 0.0)
        figures = np.empty((N_STATE - N_COUNTS, len(candidates)), np.float32)
        figures[:] = state[N_COUNTS:]
        figures[UPDATED_AT - N_COUNTS] = now - candidates.updated_at
        holding = prefix.holding if prefix is not None else None
        return cls(
            candidates.directory,
            candidates.rows,
            _small(counts),
            figures,
            candidates.trust.copy(),
            prefix.small(holding) if prefix is not None and holding is not None else None,
            _small(holding) if holding is not None else None,
        )

    def __len__(self) -> int:
        return len(self.trust)

    def arrays(self) -> Iterator[NDArray[Any]]:
        """Yield the arrays of the table, those included that it may share with others."""
        yield from (self.counts, self.figures, self.trust)
        yield from (each for each in (self.rows, self.holding) if each is not None)
        if self.prefix is not None:
            yield from self.prefix.arrays()

    def row(self, name: str) -> int | None:
        """Return the row of a name, None if it is not in the table."""
        return self.directory.row(name, self.rows)

    def table(self, *, now: float) -> Candidates:
        """Return the candidates as a table, without their LoRA adapters; `now` as given to `of`."""
        state = np.empty((N_STATE, len(self)))
        state[:N_COUNTS] = self.counts
        state[N_COUNTS:] = shown(self.figures)
        state[UPDATED_AT] = now - state[UPDATED_AT]
        state[:2, np.isnan(state[UPDATED_AT])] = np.nan
        return Candidates(self.directory, state, self.trust, self.prefixes(), rows=self.rows)

    def prefixes(self) -> PrefixColumns | None:
        """Return the prefixes of all rows, None if the request has no block keys."""
        if self.prefix is None or self.holding is None:
            return None
        return self.prefix.spread(self.holding.astype(np.intp), n=len(self))


def _small(numbers: FloatArray | RowArray) -> NDArray[np.uint16 | np.uint32]:
    fits = not numbers.size or numbers.max() <= np.iinfo(np.uint16).max
    return numbers.astype(np.uint16 if fits else np.uint32)
