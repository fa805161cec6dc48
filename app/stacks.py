"""Stacks in words for the log: calls of kvatlas alone, and no values, which may come from prompts or engines."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import FrameType
from typing import cast


def where(frame: FrameType | None) -> str:
    """Return the calls of kvatlas that lead to a frame, innermost first."""
    stack = traceback.walk_stack(frame) if frame is not None else ()
    return _calls(stack) or "no code of kvatlas (the process may have been stopped)"


def described(error: BaseException) -> str:
    """Return the type of an exception and the calls of kvatlas that raised it, innermost first."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return "; ".join(described(each) for each in group.exceptions)
    calls = _calls(reversed(list(traceback.walk_tb(error.__traceback__))))
    return f"{type(error).__name__} in {calls or 'no code of kvatlas'}"


def _calls(stack: Iterable[tuple[FrameType, int]]) -> str:
    return " < ".join(
        f"{module}:{line} {frame.f_code.co_name}"
        for frame, line in stack
        if (module := str(frame.f_globals.get("__name__"))).startswith("kvatlas.")
    )
