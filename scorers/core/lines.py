"""Lines of a table in few bytes, for kept decisions.

A line is a number per row. It begins with a byte: the form times 16, plus the type of its items (an index into `TYPES`). Then come:

| form | bytes |
|---|---|
| `EQUAL` | one item, for all rows |
| `DENSE` | an item per row |
| `SPARSE` | the number of items other than 0 (uint32), their rows (uint16, uint32 in tables of more than 65,536), the items |

The first form that fits is taken: `SPARSE` only if it is shorter than `DENSE`. Numbers have the byte order of the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import CodeArray, FloatArray, IntArray, Mask

EQUAL, DENSE, SPARSE = range(3)

TYPES = tuple(np.dtype(each) for each in (np.uint8, np.uint16, np.uint32, np.float32))

MAX_COUNTS = (0xFF, 0xFFFF, 0xFFFF_FFFF)
"""Highest count by type."""

MAX_SHORT_ROWS = 0x1_0000
"""Rows of a table whose row numbers need 16 bits."""

N_COUNTS = 3
"""First lines of a state, which are counts."""

UPDATED_AT = 4
"""Line of a state that is kept as an age."""


def packed(state: FloatArray, now: float, counts: Sequence[IntArray | CodeArray | Mask]) -> bytes:
    """Return the lines of a table, for `unpacked`.

    Args:
        state: see `Candidates`. The first lines are kept as counts, 0 if unknown; the others as float32, the time of the load
            as its age.
        now: monotonic seconds.
        counts: further lines of numbers of at least 0, or matrices of them.
    """
    parts = [_packed_counts(line) for line in state[:N_COUNTS]]
    for number, line in enumerate(state[N_COUNTS:], N_COUNTS):
        parts.append(
            _packed((now - line if number == UPDATED_AT else line).astype(np.float32), len(TYPES) - 1)
        )
    for each in counts:
        parts.extend(map(_packed_counts, each if each.ndim == 2 else [each]))
    return b"".join(parts)


def unpacked(lines: bytes, *, n: int, n_lines: int) -> FloatArray:
    """Return the first lines of a table of `n` rows, as a matrix."""
    read = np.zeros((n_lines, n))
    at = 0
    for line in read:
        form, type_ = divmod(lines[at], 16)
        dtype = TYPES[type_]
        at += 1
        if form == EQUAL:
            line[:] = np.frombuffer(lines, dtype, 1, at)
            at += dtype.itemsize
        elif form == DENSE:
            line[:] = np.frombuffer(lines, dtype, n, at)
            at += n * dtype.itemsize
        else:
            n_items = int.from_bytes(lines[at : at + 4], sys.byteorder)
            at += 4
            rows = np.frombuffer(lines, _row_type(n), n_items, at)
            at += rows.nbytes
            line[rows] = np.frombuffer(lines, dtype, n_items, at)
            at += n_items * dtype.itemsize
    return read


def _packed_counts(line: NDArray[Any]) -> bytes:
    counts = np.minimum(np.fmax(line.astype(np.float64), 0.0), MAX_COUNTS[-1])
    highest = counts.max(initial=0.0)
    type_ = next(number for number, most in enumerate(MAX_COUNTS) if highest <= most)
    return _packed(counts.astype(TYPES[type_]), type_)


def _packed(items: NDArray[Any], type_: int) -> bytes:
    n = len(items)
    bits = items.view(f"u{items.itemsize}")  # a NaN equals itself, and -0.0 is not 0
    if n and (bits == bits[0]).all():
        return _head(EQUAL, type_) + items[:1].tobytes()
    rows = np.flatnonzero(bits).astype(_row_type(n))
    if 4 + rows.nbytes + len(rows) * items.itemsize >= items.nbytes:
        return _head(DENSE, type_) + items.tobytes()
    return b"".join(
        (_head(SPARSE, type_), np.uint32(len(rows)).tobytes(), rows.tobytes(), items[rows].tobytes())
    )


def _head(form: int, type_: int) -> bytes:
    return bytes((form * 16 + type_,))


def _row_type(n: int) -> np.dtype[np.uint16] | np.dtype[np.uint32]:
    return np.dtype(np.uint16) if n <= MAX_SHORT_ROWS else np.dtype(np.uint32)
