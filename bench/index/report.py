"""Sections of the index benchmark as tables, with how Dynamo compares and whether targets are met."""

from __future__ import annotations

from collections.abc import Sequence

from ..common.tables import Cell, Table, number
from .columns import Column
from .dynamo import THREADS
from .fleet import make_fleet
from .results import Figure, Row, Section, Target
from .sizes import Size

_PEERS = {Column.RADIX_TREE: "RadixTree", Column.SERVICE: "Service"}


def section_table(section: Section, columns: Sequence[Column]) -> Table:
    """Return the figures of a section, one column per measured system."""
    peers = [column for column in _PEERS if column in columns]
    shown = [f"Dynamo {column}" if column in _PEERS else str(column) for column in columns]
    ratios = [f"{_PEERS[peer]} / native" for peer in peers]
    return Table(
        name=section.name,
        title=section.title,
        headings=("", "unit", *shown, *ratios, "target of native", ""),
        rows=tuple(_cells(row, columns, peers) for row in section.rows),
    )


def verdict_table(sections: Sequence[Section]) -> Table:
    """Return how many targets there are, and how many were reached."""
    held = [row for section in sections for row in section.rows if row.reached is not None]
    n_met = sum(row.is_met for row in held)
    return Table(name="targets", title="Targets", headings=("targets", "reached"), rows=((len(held), n_met),))


def fleet_table(size: Size) -> Table:
    """Return the size of what was measured."""
    rows: tuple[tuple[Cell, ...], ...] = (
        ("endpoints", size.fleet.n_endpoints),
        ("residencies on GPU and CPU", make_fleet(size.fleet).n_residencies),
        ("endpoints of the huge index", size.huge.n_endpoints),
        ("blocks of its shared tier", size.shared_blocks),
        ("indexer threads of Dynamo", THREADS),
    )
    return Table(name="fleet", title="Size of the run", headings=("the fleet", "number"), rows=rows)


def _cells(row: Row, columns: Sequence[Column], peers: Sequence[Column]) -> tuple[Cell, ...]:
    ratios = [row.times(peer) for peer in peers]
    return (
        row.label,
        row.unit,
        *(_figure(row.figures.get(column)) for column in columns),
        *("" if ratio is None else f"{number(ratio)}x" for ratio in ratios),
        "" if row.target is None else _target(row.target),
        _verdict(row),
    )


def _figure(figure: Figure | None) -> Cell:
    if figure is None or figure.p99 is None:
        return None if figure is None else float(figure.value)
    return (figure.value, figure.p99)


def _target(target: Target) -> str:
    return f"<= {target.limit:g}" if target.peer is None else f"{_PEERS[target.peer]} / {target.limit:g}"


def _verdict(row: Row) -> str:
    if row.reached is None:
        return ""
    return "reached" if row.is_met else "MISSED"
