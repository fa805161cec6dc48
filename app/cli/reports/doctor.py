"""What `kvatlas doctor` asks, and how it tells a person."""

from __future__ import annotations

import asyncio
import time

from rich.console import Console
from rich.table import Table

from ....api.doctor.check import examine
from ....api.doctor.checks import CHECKS
from ....api.doctor.patient import Patient
from ....api.rest.doctor import CheckOut, DoctorOut, diagnosis
from ....configs.schema import KVAtlasConfig
from ...errors import AskError
from ..client import Credentials, asking

_STYLES = {"ok": "green", "unknown": "dim", "warn": "yellow", "fail": "bold red"}


def fetch_diagnosis(url: str, credentials: Credentials) -> DoctorOut:
    """The diagnosis of the process whose REST address is `url`.

    Raises:
        AskError: nobody answers there, or something that is not kvatlas does.
    """
    return asyncio.run(_fetch(url, credentials))


def diagnose(config: KVAtlasConfig) -> DoctorOut:
    """What a configuration alone shows; its files are read."""
    return diagnosis(examine(CHECKS, Patient(config=config, wall=time.time())))


def print_diagnosis(console: Console, found: DoctorOut) -> None:
    """A row a check, and below it what is wrong, what that does and what mends it."""
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "state", "what was seen"):
        table.add_column(heading, overflow="fold")
    for check in found.checks:
        table.add_row(check.name, f"[{_STYLES[check.state]}]{check.state}[/]", _seen(check))
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
    return "\n".join(shown).replace("[", r"\[")


async def _fetch(url: str, credentials: Credentials) -> DoctorOut:
    async with asking(url, credentials) as asker:
        found = await asker.get("/v1/doctor", DoctorOut)
    if found is None:
        raise AskError(f"{url}: knows no /v1/doctor; is it an older kvatlas? see --url")
    return found
