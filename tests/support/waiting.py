"""Waiting for what a test brings about elsewhere: in a task, a socket, another process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

PATIENCE_S = 60.0
"""Far more than anything takes on a busy machine: only a test that fails waits so long."""

_POLL_S = 0.005


async def until(
    condition: Callable[[], object], *, what: str = "the condition", timeout_s: float = PATIENCE_S
) -> None:
    """Returns once `condition()`, awaited if it is a coroutine function, is true.

    Raises:
        AssertionError: it was not within `timeout_s`; the message names `what`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await _holds(condition):  # noqa: ASYNC110 - nothing signals it: it is what the test asks
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"{what} did not come about within {timeout_s:.0f} s") from None


async def _holds(condition: Callable[[], object]) -> bool:
    answer = condition()
    if inspect.isawaitable(answer):
        answer = await answer
    return bool(answer)
