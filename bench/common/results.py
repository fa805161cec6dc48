"""Results of benchmarks as files: what was measured, when, on which machine, and with which versions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from .benchmark import Benchmark
from .machine import Machine, machine, versions
from .tables import Table

FOLDER = Path(__file__).parents[1] / "results"
"""The committed results: one file per benchmark, of a run with the default options."""

Options = dict[str, str | int | float | bool | list[str | int] | None]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one benchmark.

    Attributes:
        benchmark: its name.
        date: the day of the run, ISO, UTC.
        options: values of its command-line options.
        machine: the computer, and its load before the run.
        versions: by distribution, of all that was measured.
        tables: the figures.
    """

    benchmark: str
    date: str
    options: Options
    machine: Machine
    versions: dict[str, str]
    tables: tuple[Table, ...]

    def table(self, name: str) -> Table:
        """Return the table of that name.

        Raises:
            KeyError: there is none.
        """
        return {table.name: table for table in self.tables}[name]

    @property
    def about(self) -> str:
        """When, how and on what the figures were measured, for a reader of the docs."""
        measured = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"Measured on {self.date} by `python -m bench {self.benchmark}`: {self.machine}. {measured}."


class Run:
    """The circumstances of a run that begins: the load of the machine is read before anything is measured."""

    def __init__(self, benchmark: Benchmark) -> None:
        self._benchmark = benchmark
        self._machine = machine()

    def result(self, tables: tuple[Table, ...], options: Options) -> Result:
        """Return the result of the run with these options."""
        return Result(
            benchmark=self._benchmark.name,
            date=datetime.now(UTC).date().isoformat(),
            options=options,
            machine=self._machine,
            versions=versions(self._benchmark.distributions),
            tables=tables,
        )


def file_of(benchmark: str) -> Path:
    """Return the file of the committed result of a benchmark."""
    return FOLDER / f"{benchmark}.json"


def read(benchmark: str) -> Result:
    """Return the committed result of a benchmark.

    Raises:
        FileNotFoundError: there is none.
    """
    return msgspec.json.decode(file_of(benchmark).read_bytes(), type=Result)


def write(result: Result, file: Path) -> None:
    """Write a result, rounded to four significant digits, which is more than the docs show."""
    rounded = msgspec.structs.replace(result, tables=tuple(map(_rounded, result.tables)))
    file.write_bytes(msgspec.json.format(msgspec.json.encode(rounded), indent=1) + b"\n")


def _rounded(table: Table) -> Table:
    rows = tuple(
        tuple(
            _round(cell)
            if isinstance(cell, float)
            else (_round(cell[0]), _round(cell[1]))
            if isinstance(cell, tuple)
            else cell
            for cell in row
        )
        for row in table.rows
    )
    return msgspec.structs.replace(table, rows=rows)


def _round(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 0)
