"""Fresh processes, so that one measurement leaves nothing behind for the next."""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
from collections.abc import Callable, Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

TIMEOUT_S = 180.0
"""Longest silence of a process: the longest fills take half a minute each on an idle machine."""


@contextlib.contextmanager
def child(body: Callable[..., None], *arguments: object) -> Generator[Connection]:
    """Run `body(pipe, *arguments)` in a fresh process; yields our end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=body, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
        process.join(TIMEOUT_S)
    finally:
        process.kill()
        process.join()
        ours.close()


def receive(pipe: Connection) -> Any:  # noqa: ANN401 - pipes carry what the child sends
    """Return the next message of the child.

    Raises:
        SystemExit: it died or is silent.
    """
    if pipe.poll(TIMEOUT_S):
        with contextlib.suppress(EOFError):
            return pipe.recv()
    raise SystemExit("a process of the benchmark died or hangs; its own message is above")


def raise_file_limit() -> None:
    """Raise the limit of open files to the allowed maximum; 512 publishers need some thousands."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process so far, all threads."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def rss_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
