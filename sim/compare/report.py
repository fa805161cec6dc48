"""The comparison as a table, as bars in a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..figure_table import NAME_CHARS, keep_figures, shortened
from .figures import Row

BAR_CHARS = 60
"""Longest bar of a wide terminal."""

MIN_BAR_CHARS = 10

FIGURES_CHARS = 24
"""Width of the figures after a bar."""

LATE_S = 0.05
"""Lateness of the simulation that is worth a warning: a tenth of a short time to first token."""

_MEANS = {"ttftMean": "ttft_mean", "ttftP50": "ttft_p50", "ttftP99": "ttft_p99", "cached": "cached"}
"""Key in JSON -> a figure of runs."""

_COLUMNS = ("mean TTFT, s", "p50", "p99", "cached", "busiest", "failed")


def print_report(console: Console, rows: Sequence[Row], *, time_scale: float) -> None:
    """Print a table and bars for each rate, and what has to be known about the figures."""
    for rate in dict.fromkeys(row.rate for row in rows):
        same_rate = [row for row in rows if row.rate == rate]
        console.print(_table(same_rate, rate), crop=False)
        for line in _bars(same_rate, console.width):
            console.print(line, no_wrap=True, crop=False)
    for remark in remarks(rows, time_scale=time_scale):
        console.print(remark, style="yellow", markup=False, highlight=False)


def _table(rows: Sequence[Row], rate: float) -> Table:
    table = Table(title=f"{rate:g} chats a second", title_justify="left")
    table.add_column("policy")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        failed = sum(run.failed for run in row.runs)
        table.add_row(
            row.policy,
            *(_seconds(row, name) for name in ("ttft_mean", "ttft_p50", "ttft_p99")),
            f"{row.mean('cached'):.1%}",
            f"{row.mean('busiest'):.0%}",
            str(failed),
        )
    return keep_figures(table)


def _seconds(row: Row, name: str) -> str:
    """Return the mean over repeats, with their range if there are several."""
    mean = f"{row.mean(name):.2f}"
    if len(row.runs) == 1:
        return mean
    low, high = row.range(name)
    return f"{mean} ({low:.2f}-{high:.2f})"


def _bars(rows: Sequence[Row], columns: int) -> Iterator[Text]:
    """Yield a line for each policy: full blocks to the mean, light ones to p99."""
    longest = max((row.mean("ttft_p99") for row in rows), default=0.0) or 1.0
    room = max(NAME_CHARS, columns - FIGURES_CHARS - MIN_BAR_CHARS)
    names = [shortened(row.policy, room) for row in rows]
    width = max(map(len, names))
    n_chars = max(MIN_BAR_CHARS, min(BAR_CHARS, columns - width - FIGURES_CHARS))
    for name, row in zip(names, rows, strict=True):
        mean, p99 = (round(n_chars * row.mean(each) / longest) for each in ("ttft_mean", "ttft_p99"))
        yield Text.assemble(
            f"{name:<{width}} ", ("█" * mean, "green"), ("░" * (p99 - mean), "dim"),
            f" {row.mean('ttft_mean'):.2f}, p99 {row.mean('ttft_p99'):.2f} s",
        )  # fmt: skip


def remarks(rows: Sequence[Row], *, time_scale: float) -> Iterator[str]:
    """Yield what has to be known about the figures."""
    if time_scale != 1:
        yield (
            f"time is scaled: a simulated second took {time_scale:g} real ones. Times above are simulated; pickers, "
            "Envoy and sockets took their real time, and scrape intervals and timeouts were not scaled."
        )
    late = {row.policy: 1000 * max(run.lag_p99 for run in row.runs) for row in rows}
    if over := [f"{policy} by {ms:.0f} ms" for policy, ms in late.items() if ms > 1000 * LATE_S]:
        yield (
            f"this machine was too busy: the simulated servers were late (p99, worst run): {', '.join(over)}. "
            "Compare on a quiet machine, with fewer chats a second, or with a larger --time-scale."
        )
    for row in rows:
        if count := sum(run.without_picker for run in row.runs):
            yield f"{row.policy}: {count} requests went round robin, since the picker did not answer"


def to_json(rows: Sequence[Row], *, settings: Mapping[str, object], time_scale: float) -> bytes:
    """Return settings, all runs of all rows, and remarks."""
    document = {
        "settings": dict(settings),
        "rows": [
            msgspec.to_builtins(row) | {"mean": {key: row.mean(name) for key, name in _MEANS.items()}}
            for row in rows
        ],
        "remarks": list(remarks(rows, time_scale=time_scale)),
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"
