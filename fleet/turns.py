"""Long work on the event loop, in turns between which other tasks run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

TURN_S = 0.001
"""Time of one turn; the step that passes it is the last one of its turn."""

T = TypeVar("T")


async def in_turns(steps: Iterable[T]) -> AsyncGenerator[T]:
    """Yield the results of the steps, and let other tasks run between some of them."""
    begun = time.monotonic()
    for each in steps:
        yield each
        if time.monotonic() - begun > TURN_S:
            await asyncio.sleep(0)
            begun = time.monotonic()
