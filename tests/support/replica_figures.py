"""Figures of `make replica-check`: shown, appended to a file, and written as a table into the docs.

    python -m support.replica_figures FILE PAGE

writes the figures in FILE into PAGE, between its marks. The runs append to the file that KVATLAS_REPLICA_FIGURES names.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from pathlib import Path

import msgspec

from bench.common.machine import machine
from support.chats import PHASE_S, RATE, Tally

BEGIN, END = "<!-- replica-check begin -->", "<!-- replica-check end -->"
HEADS = (
    "replicas meet by",
    "what happens",
    "requests, each phase",
    "requests/s",
    "failed",
    "hit rate before",
    "meanwhile",
    "after",
    "without a picker",
    "counted of held",
    "left at the end",
)


class Phase(msgspec.Struct, frozen=True):
    """Requests of one phase."""

    requests: int
    failed: int
    seconds: float
    hit_rate: float
    undecided: int
    """Requests that the gateway sent anywhere, because the replica that was to decide was gone."""

    @classmethod
    def of(cls, tally: Tally) -> Phase:
        return cls(len(tally.statuses), tally.failed, tally.seconds, tally.hit_rate, tally.undecided)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one case showed.

    Attributes:
        transport: what the replicas meet by.
        hurt: what happened.
        phases: before, while it happened, after.
        counted: requests held in flight at the end, which each replica counted once; 0 if none were held.
        left: most requests in flight that a replica still counts when none is.
        rate: wanted requests per second.
        phase_s: seconds of each phase.
        about: day and machine.
    """

    transport: str
    hurt: str
    phases: list[Phase]
    counted: int
    left: int
    rate: float = RATE
    phase_s: float = PHASE_S
    about: str = ""


def record(figures: Figures) -> None:
    """Print a line of the table, which `pytest -s` shows, and append the figures to the file of this run, if there is one."""
    print(f"\n{_row(figures)}")  # noqa: T201
    if file := os.environ.get("KVATLAS_REPLICA_FIGURES"):
        today = dt.datetime.now(dt.UTC).date()
        here = machine()
        about = f"on {today}: {here.cores} x {here.processor}, {here.memory_gib} GiB, {here.system}"
        told = msgspec.structs.replace(figures, about=about)
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        with Path(file).open("ab") as lines:
            lines.write(msgspec.json.encode(told) + b"\n")


def table(found: list[Figures]) -> str:
    """Return figures as Markdown; the last ones of each case count."""
    cases = {(each.transport, each.hurt): each for each in found}.values()
    first = next(iter(cases))
    how = f"Measured {first.about}, at {first.rate:g} requests/s wanted, with phases of {first.phase_s:g} s."
    heads = [_line(HEADS), _line(["---"] * 2 + ["---:"] * (len(HEADS) - 2))]
    return "\n".join([how, "", *heads, *map(_row, cases)])


def written(page: str, found: list[Figures]) -> str:
    """Return a page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert end, f"the page has no {BEGIN} ... {END}"
    return f"{before}{BEGIN}\n\n{table(found)}\n\n{END}{after}"


def _row(figures: Figures) -> str:
    before, during, after = figures.phases
    return _line(
        (
            figures.transport,
            figures.hurt,
            f"{before.requests:,}, {during.requests:,}, {after.requests:,}",
            f"{before.requests / before.seconds:.0f}",
            f"{sum(each.failed for each in figures.phases)}",
            *(f"{100 * each.hit_rate:.2f} %" for each in figures.phases),
            ", ".join(str(each.undecided) for each in figures.phases),
            f"{figures.counted} of {figures.counted}" if figures.counted else "-",
            f"{figures.left}",
        )
    )


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the figures of a run into a page."""
    file, page = map(Path, sys.argv[1:])
    found = [msgspec.json.decode(line, type=Figures) for line in file.read_bytes().splitlines()]
    page.write_text(written(page.read_text(), found))


if __name__ == "__main__":
    main()
