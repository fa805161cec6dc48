"""Where and with what the figures were made, for people."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

from . import dynamo

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def machine() -> str:
    """Processors, memory and system."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return (
        f"{os.cpu_count()} x {names[0] if names else platform.machine()}, {memory:.0f} GiB,"
        f" {platform.system()} {platform.release().partition('-')[0]}, transparent huge pages {_huge_pages()},"
        f" load before the run {os.getloadavg()[0]:.1f}"
    )


def versions() -> dict[str, str]:
    """Of what was measured."""
    found = {"Python": platform.python_version(), "kvatlas": metadata.version("kvatlas")}
    if (installed := dynamo.version()) is not None:
        found["ai-dynamo-runtime"] = installed
    return found


def _huge_pages() -> str:
    """The setting in force, which the system shows in brackets."""
    text = _HUGE_PAGES.read_text() if _HUGE_PAGES.exists() else "[unknown]"
    return text.partition("[")[2].partition("]")[0]
