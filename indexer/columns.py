"""Columns: tables as machine arrays, so that saving one needs no Python object per row."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    Column = array[int]
else:
    Column = array  # msgspec reads the annotation, and Python 3.11 cannot subscript array


class Saved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all saved values: unknown fields are rejected, and every field is checked on reading."""


class HolderColumns(Saved, frozen=True):
    """The contents of one holder: `store(copies)`, then `keep(keys)` rebuild it from an empty one.

    Attributes:
        keys: u64, every key once, most recently used first.
        copies: u64, each key with several copies, repeated once per copy, the latest to get a second copy first.
    """

    keys: Column
    copies: Column

    def __post_init__(self) -> None:
        """Raise ValueError for wrong columns."""
        check_columns(keys=(self.keys, "Q"))
        check_columns(copies=(self.copies, "Q"))


def check_columns(**columns: tuple[array[int], str]) -> None:
    """Check that the columns of one table have these typecodes and the same number of rows.

    Raises:
        ValueError: they do not; the message names the columns.
    """
    for name, (column, typecode) in columns.items():
        if column.typecode != typecode:
            raise ValueError(f"column {name} is array({column.typecode!r}), want array({typecode!r})")
    n_rows = {name: len(column) for name, (column, _) in columns.items()}
    if len(set(n_rows.values())) > 1:
        raise ValueError(f"columns of one table have different lengths: {n_rows}")
