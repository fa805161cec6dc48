"""The end of background tasks."""

from __future__ import annotations

import asyncio


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel the tasks, wait until all have ended, and empty the list."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    tasks.clear()
