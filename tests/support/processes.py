"""Processes of this machine, by number."""

from __future__ import annotations

from pathlib import Path


def children(pid: int | None) -> list[int]:
    """Return the running children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pids: list[int]) -> list[int]:
    """Return the processes that still run."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
