"""The report of `kvatlas doctor`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ....api.rest.doctor_models import CheckOut, DoctorOut
from ..client import Client

_STYLES = {"ok": "green", "unknown": "dim", "warn": "yellow", "fail": "bold red"}


def fetch_diagnosis(client: Client) -> DoctorOut:
    """Return the diagnosis of the running process.

    Raises:
        AskError: as of `Client.require`.
    """
    return client.require("/v1/doctor", DoctorOut)


def print_diagnosis(console: Console, found: DoctorOut) -> None:
    """Print a row per check, then the effect and the remedy of each problem."""
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "state", "what was seen"):
        table.add_column(heading, overflow="fold")
    for check in found.checks:
        table.add_row(check.name, Text(check.state, _STYLES[check.state]), _seen(check))
    console.print(table, highlight=False)
    for check in found.checks:
        if check.effect is not None:
            console.print()
            lines = [f"{check.name}: {check.effect}", *(f"  mend: {each}" for each in check.remedies)]
            console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def _seen(check: CheckOut) -> str:
    n_more = len(check.evidence) - 1 + check.more
    shown = check.evidence if check.effect is not None else check.evidence[:1]
    if check.effect is None and n_more:
        shown = [f"{shown[0]} (and {n_more} more)"]
    elif check.more:
        shown = [*shown, f"and {check.more} more"]
    return "\n".join(shown)
