"""The candidates of a kept decision: copies of their columns in as few bytes as they need."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from .candidates import N_STATE, UPDATED_AT, Candidates, Directory
from .columns import CodeArray, FloatArray, IntArray, Mask, RowArray, shown
from .lines import N_COUNTS, unpacked
from .operations import packed
from .predictions import Predictions
from .prefix_columns import N_BESIDE_TIERS, NO_RANKS, NO_RUNS, PrefixColumns, Runs

PARTS_BYTES, PART_BYTES = 500, 96
"""Upper bounds of the memory of an endpoint's runs whose tiers alternate or its further ranks, and of each of these."""

PREDICTIONS_BYTES = 250
"""Upper bound of the memory of predictions without their numbers."""


class KeptPrefix(msgspec.Struct, frozen=True, gc=False):
    """What is kept of prefixes beside their numbers; see `PrefixColumns`.

    Attributes:
        tiers: names of the configured tiers, fastest first.
        n_blocks: full blocks of the prompt, None if they differ between endpoints.
        block_size: tokens per block, likewise.
        is_partial: whether some endpoint has no prefix.
        interleaved: row -> runs.
        other_ranks: row -> rank -> usable tokens.
        all_but_last: rows that reuse the whole prompt but for its last token.
    """

    tiers: tuple[str, ...]
    n_blocks: int | None
    block_size: int | None
    is_partial: bool
    interleaved: Mapping[int, Runs]
    other_ranks: Mapping[int, Mapping[int, int]]
    all_but_last: frozenset[int]

    @property
    def n_bytes(self) -> int:
        """Upper bound of the memory of `interleaved`, `other_ranks` and `all_but_last`."""
        parts = (*self.interleaved.values(), *self.other_ranks.values(), self.all_but_last)
        return len(parts) * PARTS_BYTES + sum(map(len, parts)) * PART_BYTES


class KeptTable(msgspec.Struct, frozen=True, gc=False):
    """Columns of candidates at one moment; see `Candidates`.

    Attributes:
        directory: names, addresses and labels, shared with other decisions.
        rows: rows of the directory, None for all.
        lines: the numbers, see `lines`: those of `state`, the codes of trust, then those of the prefixes.
        prefix: None if the request has no block keys.
        predictions: None if nothing was predicted.
    """

    directory: Directory
    rows: RowArray | None
    lines: bytes
    prefix: KeptPrefix | None
    predictions: Predictions | None = None

    @classmethod
    def of(cls, candidates: Candidates, *, now: float) -> KeptTable:
        """Copy the columns of a table at the time `now`."""
        counts: list[IntArray | CodeArray | Mask] = [candidates.trust]
        prefix, kept = candidates.prefix, None
        if prefix is not None:
            n_blocks, block_size, is_known = prefix.n_blocks, prefix.block_size, prefix.is_known
            counts.append(prefix.figures)
            if not isinstance(n_blocks, int):
                counts.append(n_blocks)
            if not isinstance(block_size, int):
                counts.append(block_size)
            if is_known is not None:
                counts.append(is_known)
            kept = KeptPrefix(
                prefix.tiers,
                n_blocks if isinstance(n_blocks, int) else None,
                block_size if isinstance(block_size, int) else None,
                is_known is not None,
                prefix.interleaved or NO_RUNS,  # an empty one of each prompt would take memory
                prefix.other_ranks or NO_RANKS,
                prefix.all_but_last,
            )
        predictions = candidates.predictions
        return cls(
            candidates.directory,
            candidates.rows,
            packed(candidates.state, now, counts),
            kept,
            predictions.lasting() if predictions is not None else None,
        )

    def __len__(self) -> int:
        return len(self.directory if self.rows is None else self.rows)

    @property
    def n_bytes(self) -> int:
        """Upper bound of the memory of what grows with the fleet, that included which other decisions may share."""
        n_bytes, prefix = len(self.lines), self.prefix
        if prefix is not None and (prefix.interleaved or prefix.other_ranks or prefix.all_but_last):
            n_bytes += prefix.n_bytes
        if self.predictions is not None:
            n_bytes += PREDICTIONS_BYTES + self.predictions.figures.nbytes
        return n_bytes if self.rows is None else n_bytes + self.rows.nbytes

    def row(self, name: str) -> int | None:
        """Return the row of a name, None if it is not in the table."""
        return self.directory.row(name, self.rows)

    def table(self, *, now: float) -> Candidates:
        """Return the candidates as a table, without their LoRA adapters; `now` as given to `of`."""
        read = self._read()
        state = read[:N_STATE]
        state[N_COUNTS:] = shown(state[N_COUNTS:].astype(np.float32))
        state[UPDATED_AT] = now - state[UPDATED_AT]
        state[:2, np.isnan(state[UPDATED_AT])] = np.nan
        trust = read[N_STATE].astype(np.int8)
        return Candidates(
            self.directory,
            state,
            trust,
            self._prefixes(read),
            rows=self.rows,
            predictions=self.predictions,
        )

    def prefixes(self) -> PrefixColumns | None:
        """Return the prefixes of all rows, None if the request has no block keys."""
        return self._prefixes(self._read()) if self.prefix is not None else None

    def _read(self) -> FloatArray:
        n_lines, kept = N_STATE + 1, self.prefix
        if kept is not None:
            n_lines += 2 * len(kept.tiers) + N_BESIDE_TIERS
            n_lines += (kept.n_blocks is None) + (kept.block_size is None) + kept.is_partial
        return unpacked(self.lines, n=len(self), n_lines=n_lines)

    def _prefixes(self, read: FloatArray) -> PrefixColumns | None:
        kept = self.prefix
        if kept is None:
            return None
        end = N_STATE + 1 + 2 * len(kept.tiers) + N_BESIDE_TIERS
        more = iter(read[end:])
        return PrefixColumns(
            kept.tiers,
            read[N_STATE + 1 : end].astype(np.int32),
            next(more).astype(np.int32) if kept.n_blocks is None else kept.n_blocks,
            next(more).astype(np.int32) if kept.block_size is None else kept.block_size,
            is_known=next(more).astype(np.bool_) if kept.is_partial else None,
            interleaved=kept.interleaved,
            other_ranks=kept.other_ranks,
            all_but_last=kept.all_but_last,
        )
