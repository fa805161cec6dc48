"""A coroutine that a signal ends, with all it started."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of shells."""


async def until_signal(work: Coroutine[None, None, int]) -> int:
    """Return the status of `work`; the first signal cancels it, further ones do not disturb its cleanup."""
    task = asyncio.create_task(work)

    def interrupt() -> None:
        if not task.cancelling():
            task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, interrupt)
    await asyncio.wait((task,))
    return INTERRUPTED if task.cancelled() else task.result()
