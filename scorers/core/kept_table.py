"""The candidates of a kept decision: copies of their columns in as few bytes as they need."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from .candidates import CREDIT, N_STATE, UPDATED_AT, Candidates, Directory
from .columns import CodeArray, FloatArray, RowArray, SmallFloats, shown
from .prefix_columns import PrefixColumns

Counts: TypeAlias = NDArray[np.uint16 | np.uint32]

MAX_UINT16 = int(np.iinfo(np.uint16).max)

N_SMALL = 32
"""Candidates up to which it costs less to keep the figures of all prefixes than to find those that are not 0."""

N_COUNTS = 3
"""First rows of `Candidates.state`, which are small numbers: requests waiting, running and in flight."""


class KeptTable(msgspec.Struct, frozen=True, gc=False):
    """Columns of candidates at one moment; see `Candidates`.

    Attributes:
        directory: names, addresses and labels, shared with other decisions.
        rows: rows of the directory, None for all.
        counts: requests waiting, running and in flight; 0 if unknown.
        figures: KV-cache utilization, age of the load in seconds (NaN if unknown), and tokens in flight.
        credit: by row, or one number for all.
        trust: codes of trust.
        prefix: prefixes of the rows in `holding`, None if the request has no block keys.
        holding: rows that hold something, or have another rank than 0; None for all.
    """

    directory: Directory
    rows: RowArray | None
    counts: Counts
    figures: SmallFloats
    credit: SmallFloats
    trust: CodeArray
    prefix: PrefixColumns | None
    holding: NDArray[np.uint16 | np.uint32] | None

    @classmethod
    def of(cls, candidates: Candidates, *, now: float) -> KeptTable:
        """Copy the columns of a table at the time `now`."""
        state, prefix = candidates.state, candidates.prefix
        counts = np.fmax(state[:N_COUNTS], 0.0)
        figures = np.empty((CREDIT - N_COUNTS, len(candidates)), np.float32)
        figures[:] = state[N_COUNTS:CREDIT]
        credit = candidates.credit
        is_uniform = (credit == credit[:1]).all()
        figures[UPDATED_AT - N_COUNTS] = now - candidates.updated_at
        holding = prefix.holding if prefix is not None and len(candidates) > N_SMALL else None
        return cls(
            candidates.directory,
            candidates.rows,
            _small(counts),
            figures,
            credit[:1].astype(np.float32) if is_uniform else credit.astype(np.float32),
            candidates.trust.copy(),
            prefix.small(holding) if prefix is not None else None,
            _small(holding) if holding is not None else None,
        )

    def __len__(self) -> int:
        return len(self.trust)

    @property
    def n_bytes(self) -> int:
        """Bytes of all columns, those included that other decisions may share."""
        n_bytes = self.counts.nbytes + self.figures.nbytes + self.credit.nbytes + self.trust.nbytes
        for each in (self.rows, self.holding):
            if each is not None:
                n_bytes += each.nbytes
        return n_bytes + (self.prefix.n_bytes if self.prefix is not None else 0)

    def row(self, name: str) -> int | None:
        """Return the row of a name, None if it is not in the table."""
        return self.directory.row(name, self.rows)

    def table(self, *, now: float) -> Candidates:
        """Return the candidates as a table, without their LoRA adapters; `now` as given to `of`."""
        state = np.empty((N_STATE, len(self)))
        state[:N_COUNTS] = self.counts
        state[N_COUNTS:CREDIT] = shown(self.figures)
        state[CREDIT] = shown(self.credit)
        state[UPDATED_AT] = now - state[UPDATED_AT]
        state[:2, np.isnan(state[UPDATED_AT])] = np.nan
        return Candidates(self.directory, state, self.trust, self.prefixes(), rows=self.rows)

    def prefixes(self) -> PrefixColumns | None:
        """Return the prefixes of all rows, None if the request has no block keys."""
        if self.prefix is None:
            return None
        rows = slice(None) if self.holding is None else self.holding.astype(np.intp)
        return self.prefix.spread(rows, n=len(self))


def _small(numbers: FloatArray | RowArray) -> NDArray[np.uint16 | np.uint32]:
    return numbers.astype(np.uint16 if numbers.max(initial=0) <= MAX_UINT16 else np.uint32)
