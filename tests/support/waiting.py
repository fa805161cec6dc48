"""A wait for an effect elsewhere: in a task, a socket, another process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

PATIENCE_S = 60.0
"""Far longer than any wait on a busy machine; only a failing test waits that long."""

_POLL_S = 0.005


async def until(
    condition: Callable[[], object], *, what: str = "the condition", timeout_s: float = PATIENCE_S
) -> None:
    """Wait until `condition()`, awaited if it is a coroutine function, is true.

    Raises:
        AssertionError: it was not within `timeout_s`; the message names `what`.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while not await _holds(condition):  # noqa: ASYNC110 - no signal exists for it
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"{what} did not happen within {timeout_s:.0f} s") from None


async def _holds(condition: Callable[[], object]) -> bool:
    answer = condition()
    if inspect.isawaitable(answer):
        answer = await answer
    return bool(answer)
