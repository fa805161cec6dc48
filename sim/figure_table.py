"""Tables of figures, and names that give way to them if there is little room."""

from __future__ import annotations

from rich.table import Table

NAME_CHARS = 20
"""Least room for a name or a word of a heading; longer ones are folded."""


def keep_figures(table: Table) -> Table:
    """Let no column become narrower than its figures, however long the names in the first one are.

    Args:
        table: with all its rows. If it does not fit, it is wider than the terminal, so print it with `crop=False`.
    """
    for place, column in enumerate(table.columns):
        column.overflow = "fold"
        in_cells, in_heading = _longest_word(*column.cells), min(NAME_CHARS, _longest_word(column.header))
        column.min_width = max(in_heading, in_cells if place else min(NAME_CHARS, in_cells))
    return table


def shortened(name: str, n_chars: int) -> str:
    """Return beginning and end of a name that is longer than `n_chars`."""
    n_end = n_chars // 2
    return name if len(name) <= n_chars else f"{name[: n_chars - n_end - 1]}…{name[len(name) - n_end :]}"


def _longest_word(*cells: object) -> int:
    return max((len(word) for cell in cells for word in str(cell).split()), default=0)
