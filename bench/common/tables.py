"""Tables of figures, as text for the screen and for the docs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table as Grid

Cell = str | int | float | tuple[float, float] | None
"""A label, a count, a measured value, a median with its 99th percentile, or None if the row has no such figure."""


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Figures that were measured together.

    Attributes:
        name: names the table among those of its benchmark, in one word.
        title: shown above the table on screen.
        headings: of the columns.
        rows: one cell per column.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def markdown(table: Table) -> str:
    """Return the table in Markdown. The title heads the first column if that has no heading of its own."""
    first, *others = table.headings
    lines = [[first or table.title, *others], ["---", *("---:" for _ in others)], *text_rows(table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def grid(tables: Sequence[Table]) -> Iterator[Grid]:
    """Yield the tables for the screen. Tables with the same headings that follow each other share one grid."""
    shown: Grid | None = None
    headings: tuple[str, ...] = ()
    for table in tables:
        if shown is None or table.headings != headings:
            if shown is not None:
                yield shown
            shown, headings = _empty_grid(table.headings), table.headings
        shown.add_row(f"[bold]{escape(table.title)}[/]")
        for row in text_rows(table):
            shown.add_row(*map(escape, row), style="red" if "MISSED" in row else None)
    if shown is not None:
        yield shown


def text_rows(table: Table) -> list[list[str]]:
    """Return the cells of every row as text."""
    return [[_text(cell) for cell in row] for row in table.rows]


def _empty_grid(headings: Sequence[str]) -> Grid:
    shown = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        if number:
            shown.add_column(escape(heading.replace(" ", "\n", 1)), justify="right", no_wrap=True)
        else:
            shown.add_column(escape(heading), min_width=44)
    return shown


def _text(cell: Cell) -> str:
    match cell:
        case None:
            return "-"
        case str():
            return cell
        case int():
            return f"{cell:,}"
        case float():
            return number(cell)
        case (median, p99):
            return f"{number(median)} ({number(p99)})"


def number(value: float) -> str:
    """Return a value with three significant digits, or with all digits before the point if there are more."""
    size = abs(value)
    n_decimals = next((n for n, least in enumerate((100, 10, 1)) if size >= least), 2)
    return f"{value:,.{n_decimals}f}"
