"""The machine and the versions that figures were measured with."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import msgspec

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A computer.

    Attributes:
        cores: its processors, as the system counts them.
        processor: the name of one.
        memory_gib: memory of the machine.
        system: name and version of the kernel.
        huge_pages: the setting of transparent huge pages in force.
        load: average number of processes that wanted to run in the minute before the run.
    """

    cores: int
    processor: str
    memory_gib: int
    system: str
    huge_pages: str
    load: float

    def __str__(self) -> str:
        return (
            f"{self.cores} x {self.processor}, {self.memory_gib} GiB, {self.system},"
            f" transparent huge pages {self.huge_pages}, load before the run {self.load:.1f}"
        )


def machine() -> Machine:
    """Return this machine with its load at this moment."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return Machine(
        cores=os.cpu_count() or 1,
        processor=names[0] if names else platform.machine(),
        memory_gib=round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30),
        system=f"{platform.system()} {platform.release().partition('-')[0]}",
        huge_pages=_huge_pages(),
        load=round(os.getloadavg()[0], 1),
    )


def version(distribution: str) -> str | None:
    """Return the version of a distribution, None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of these distributions, as far as they are installed."""
    found = {name: version(name) for name in distributions}
    return {"Python": platform.python_version(), **{name: it for name, it in found.items() if it is not None}}


def _huge_pages() -> str:
    """Return the setting in force, which the system shows in brackets."""
    text = _HUGE_PAGES.read_text() if _HUGE_PAGES.exists() else "[unknown]"
    return text.partition("[")[2].partition("]")[0]
