"""Reports of a comparison, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.box import SIMPLE
from rich.table import Table

from ..figure_table import keep_figures
from .comparison import Outcome, curve_figure
from .figures import Estimate

Figure = tuple[str, str, str]
"""Heading, figure, format of its value."""

TIMES_BOUND = "timesBound"
"""Figure that `with_bounds` adds: the mean time to the first token relative to its bound."""

HITS_AND_WAITS: tuple[Figure, ...] = (
    ("found", "hitRate", ".1%"),
    ("GPU", "gpuHitRate", ".1%"),
    ("CPU", "cpuHitRate", ".1%"),
    ("storage", "storageHitRate", ".1%"),
    ("TTFT mean", "ttftMean", ".2f"),
    ("x bound", TIMES_BOUND, ".2f"),
    ("p50", "ttftP50", ".2f"),
    ("p90", "ttftP90", ".2f"),
    ("p99", "ttftP99", ".2f"),
    ("elsewhere", "prefilledElsewhere", ".1%"),
    ("SLO met", "sloMet", ".1%"),
)
WHOLE_ANSWERS: tuple[Figure, ...] = (
    ("E2E mean", "e2eMean", ".1f"),
    ("p50", "e2eP50", ".1f"),
    ("p90", "e2eP90", ".1f"),
    ("p99", "e2eP99", ".1f"),
    ("out tok/s", "outputTokensPerSecond", ".0f"),
    ("busiest", "busiestServer", ".2f"),
    ("refused", "refused", ".0f"),
)
MAY_BE_ABSENT = frozenset(
    {"cpuHitRate", "storageHitRate", "refused", "sloMet", "prefilledElsewhere", TIMES_BOUND}
)
"""Figures that are omitted if they are 0, or missing, in all cases."""

WITH_MARGIN = frozenset(
    {"hitRate", "gpuHitRate", "cpuHitRate", "ttftMean", "e2eMean", "outputTokensPerSecond"}
)
"""Figures shown with half the width of their 95 % interval; JSON has it for all figures."""


def with_bounds(outcomes: Sequence[Outcome], bounds: Sequence[Outcome]) -> list[Outcome]:
    """Add `TIMES_BOUND` to each outcome, and each fleet's bound after its last outcome."""
    found: list[Outcome] = []
    for bound in bounds:
        fleet, least = (bound.endpoints, bound.cpu_gib), bound.figures["ttftMean"].mean
        for each in outcomes:
            if (each.endpoints, each.cpu_gib) == fleet:
                # 0 if no engine can hold any of the requests
                times = {TIMES_BOUND: Estimate(each.figures["ttftMean"].mean / least)} if least else {}
                found.append(msgspec.structs.replace(each, figures={**each.figures, **times}))
        found.append(bound)
    return found


def tables(outcomes: Sequence[Outcome]) -> tuple[Table, Table]:
    """Make two tables with one row per case: hit rates with times to the first token, and all other figures; for `crop=False`.

    Times are in seconds. With several seeds, half the width of the 95 % interval follows a mean. A bound is in the first table
    only.
    """
    return (
        _table("prompt tokens found, and seconds to the first token", HITS_AND_WAITS, outcomes),
        _table(
            "seconds to the last token, throughput, and the busiest server's share of work",
            WHOLE_ANSWERS,
            outcomes,
        ),
    )


def curve_table(outcomes: Sequence[Outcome], sizes: Sequence[float]) -> Table:
    """Make a table of hit rates over ascending CPU sizes, each with the gain of 10 GiB more, in percent of the tokens; see `tables`."""
    table = Table("GiB", title="prompt tokens found, by CPU tier", box=SIMPLE, title_justify="left")
    for each in outcomes:
        table.add_column(f"{each.policy}, {each.endpoints}", justify="right")
        table.add_column("10 more", justify="right")
    for place, size in enumerate(sizes):
        cells: list[str] = []
        for each in outcomes:
            rate = each.figures[curve_figure(size)]
            larger = sizes[place + 1] if place + 1 < len(sizes) else None
            gain = "" if larger is None else _gain(rate, each.figures[curve_figure(larger)], larger - size)
            cells += [_cell("hitRate", rate, ".1%"), gain]
        table.add_row(f"{size:g}", *cells)
    return keep_figures(table)


def to_json(outcomes: Sequence[Outcome]) -> bytes:
    """Encode all figures of all cases."""
    return msgspec.json.format(msgspec.json.encode(outcomes)) + b"\n"


def _table(title: str, columns: Sequence[Figure], outcomes: Sequence[Outcome]) -> Table:
    columns = [
        column
        for column in columns
        if column[1] not in MAY_BE_ABSENT
        or any(column[1] in each.figures and each.figures[column[1]].mean for each in outcomes)
    ]
    table = Table(
        "policy",
        "servers",
        "GiB",
        title=title,
        box=SIMPLE,
        title_justify="left",
        padding=(0, 1, 0, 0),
    )
    for heading, _name, _format in columns:
        table.add_column(heading, justify="right")
    for each in outcomes:
        cells = [
            _cell(name, each.figures[name], form) if name in each.figures else ""
            for _heading, name, form in columns
        ]
        if any(cells):
            table.add_row(each.policy, str(each.endpoints), f"{each.cpu_gib:g}", *cells)
    return keep_figures(table)


def _gain(rate: Estimate, larger: Estimate, step_gib: float) -> str:
    return f"{1000 * (larger.mean - rate.mean) / step_gib:+.2f}"


def _cell(name: str, value: Estimate, form: str) -> str:
    shown = format(value.mean, form)
    if value.margin is None or name not in WITH_MARGIN:
        return shown
    return f"{shown} ±{format(value.margin, form).rstrip('%')}"
