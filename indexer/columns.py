"""Columns: tables as machine arrays, so that saving one needs no Python object a row."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    Column = array[int]
else:
    Column = array  # what msgspec reads, and Python 3.11 cannot subscript it


class Saved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every value that is saved: only its own fields, all of them checked when it is read."""


class HolderColumns(Saved, frozen=True):
    """All that one holder of a block index has: what `store(copies)`, then `keep(keys)` make of an empty holder.

    Attributes:
        keys: u64, every key once, most recently used first.
        copies: u64, each key with several copies as many times as it has copies, the last that got a second copy first.
    """

    keys: Column
    copies: Column

    def __post_init__(self) -> None:
        """Raises ValueError for other columns."""
        check_columns(keys=(self.keys, "Q"))
        check_columns(copies=(self.copies, "Q"))


def check_columns(**columns: tuple[array[int], str]) -> None:
    """Nothing when the columns of one table have these typecodes and as many rows as each other.

    Raises:
        ValueError: they do not; names the columns.
    """
    for name, (column, typecode) in columns.items():
        if column.typecode != typecode:
            raise ValueError(f"column {name} is array({column.typecode!r}), want array({typecode!r})")
    n_rows = {name: len(column) for name, (column, _) in columns.items()}
    if len(set(n_rows.values())) > 1:
        raise ValueError(f"columns of one table have different lengths: {n_rows}")
