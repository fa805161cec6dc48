"""The results as one table on screen, as a document, and for machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

import msgspec
from rich import box
from rich.markup import escape
from rich.table import Table

from .columns import Column
from .dynamo import THREADS
from .fleet import make_fleet
from .results import Figure, Row, Section, Target
from .sizes import SIZES

_TEMPLATE = Path(__file__).with_name("benchmarks.md")
_LABEL_WIDTH = 44
_PEERS = {Column.RADIX_TREE: "RadixTree", Column.SERVICE: "Service"}


@dataclass(frozen=True)
class Report:
    """One run.

    Attributes:
        date: day of the run, ISO.
        size: which of `SIZES`.
        machine: where it ran.
        versions: of what was measured.
        notes: what a reader must know of this run, such as columns that are missing.
        columns: those that were measured.
        sections: in the order to show.
    """

    date: str
    size: str
    machine: str
    versions: dict[str, str]
    notes: Sequence[str]
    columns: Sequence[Column]
    sections: Sequence[Section]

    @property
    def peers(self) -> list[Column]:
        """Columns that the native index is compared with."""
        return [column for column in _PEERS if column in self.columns]

    @property
    def headings(self) -> list[str]:
        """Of the columns of every table, after what was measured."""
        columns = [f"Dynamo {column}" if column in _PEERS else column for column in self.columns]
        return [
            "unit",
            *columns,
            *(f"{_PEERS[peer]} / native" for peer in self.peers),
            "target of native",
            "",
        ]

    def cells(self, row: Row) -> list[str]:
        """Text below `headings`."""
        ratios = [row.times(peer) for peer in self.peers]
        return [
            row.unit,
            *(_figure(row.figures.get(column)) for column in self.columns),
            *("" if ratio is None else f"{_number(ratio)}x" for ratio in ratios),
            "" if row.target is None else _target(row.target),
            _verdict(row),
        ]


def table(report: Report) -> Table:
    """Everything on one screen."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("", min_width=_LABEL_WIDTH)
    for heading in report.headings:
        shown.add_column(heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for section in report.sections:
        shown.add_row(f"[bold]{escape(section.title)}[/]")
        for row in section.rows:
            shown.add_row(escape(f"  {row.label}"), *report.cells(row), style=None if row.is_met else "red")
    return shown


def document(report: Report) -> str:
    """`docs/benchmarks.md`: the prose of the template with the tables of this run."""
    tables = {section.name: _markdown(report, section.rows) for section in report.sections}
    held = [row for section in report.sections for row in section.rows if row.reached is not None]
    n_met = sum(row.is_met for row in held)
    size = SIZES[report.size]
    return Template(_TEMPLATE.read_text()).substitute(
        tables,
        endpoints=size.fleet.n_endpoints,
        residencies=f"{make_fleet(size.fleet).n_residencies:,}",
        huge_endpoints=size.huge.n_endpoints,
        shared_blocks=f"{size.shared_blocks:,}",
        threads=THREADS,
        date=report.date,
        machine=report.machine,
        versions=", ".join(f"{name} {version}" for name, version in report.versions.items()),
        notes="".join(f"{note}\n" for note in report.notes),
        met=f"{n_met} of {len(held)} targets were reached",
    )


def as_json(report: Report) -> bytes:
    """For machines: figures, ratios and targets by section."""
    sections = [
        {
            "name": section.name,
            "title": section.title,
            "rows": [
                {
                    "label": row.label,
                    "unit": row.unit,
                    "figures": row.figures,
                    "times": {peer: ratio for peer in report.peers if (ratio := row.times(peer)) is not None},
                    "target": row.target,
                    "reached": row.reached,
                    "met": row.is_met,
                }
                for row in section.rows
            ],
        }
        for section in report.sections
    ]
    fields = {name: getattr(report, name) for name in ("date", "size", "machine", "versions", "notes")}
    return msgspec.json.format(msgspec.json.encode({**fields, "sections": sections}), indent=2)


def _markdown(report: Report, rows: Sequence[Row]) -> str:
    lines = [["", *report.headings], ["---", *["---:"] * len(report.headings)]]
    lines += [[row.label, *report.cells(row)] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    return _number(figure.value) + ("" if figure.p99 is None else f" ({_number(figure.p99)})")


def _number(value: float) -> str:
    """Three digits that count, and all of those before the point."""
    n_decimals = next((n for n, least in enumerate((100, 10, 1)) if value >= least), 2)
    return f"{value:,.{n_decimals}f}"


def _target(target: Target) -> str:
    return f"<= {target.limit:g}" if target.peer is None else f"{_PEERS[target.peer]} / {target.limit:g}"


def _verdict(row: Row) -> str:
    if row.reached is None:
        return ""
    return "reached" if row.is_met else "MISSED"
