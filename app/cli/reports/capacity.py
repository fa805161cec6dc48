"""The report of `kvatlas capacity`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ....api.rest.capacity_models import CapacityOut, PointOut
from ..client import Client


def fetch_capacity(client: Client, sizes_gib: Sequence[float]) -> CapacityOut:
    """Return the curve at these sizes, or at the usual ones if there are none.

    Raises:
        AskError: as of `Client.require`.
    """
    query = "&".join(f"gib={size:g}" for size in sizes_gib)
    return client.require(f"/v1/capacity-curve?{query}", CapacityOut)


def print_capacity(console: Console, found: CapacityOut, *, by_endpoint: bool) -> None:
    """Print a row per size: hit rate, and the gain of 10 GiB more in percent of the prompt tokens."""
    if not found.enabled:
        console.print("no curve is kept; capacityCurve.enabled: true", highlight=False)
        return
    if not found.endpoints:
        console.print("no request with token ids was routed yet", highlight=False)
        return
    for unknown in [each for each in found.endpoints if each.kv_bytes_per_token is None]:
        console.print(
            f"{unknown.name}: memory of a token is not known; {unknown.hit_rate_unbounded:.1%} found at most\n"
            f"  {unknown.kv_bytes_source}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    columns = {"all": found.points}
    if by_endpoint:
        columns |= {each.name: each.points for each in found.endpoints}
    known = {name: points for name, points in columns.items() if points}
    if known:
        console.print(_table(known), highlight=False)


def _table(columns: dict[str, list[PointOut]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("CPU GiB", justify="right")
    for name in columns:
        table.add_column(f"{name}: found", justify="right", overflow="fold")
        table.add_column("10 GiB more", justify="right")
    for row in zip(*columns.values(), strict=True):
        cells = [f"{row[0].gib:g}"]
        for point in row:
            gain = "" if point.gain_per_10_gib is None else f"{100 * point.gain_per_10_gib:+.2f}"
            cells += [f"{point.hit_rate:.1%}", gain]
        table.add_row(*cells)
    return table
