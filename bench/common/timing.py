"""CPU time of single steps."""

from __future__ import annotations

import time
from collections.abc import Callable


def microseconds(step: Callable[[], object], times: int = 1) -> float:
    """Return the CPU time of this thread per step, the mean of `times` steps in a row."""
    begin = time.thread_time_ns()
    for _ in range(times):
        step()
    return (time.thread_time_ns() - begin) / times / 1000
