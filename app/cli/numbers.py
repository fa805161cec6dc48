"""Lists of numbers in options."""

from __future__ import annotations

from math import inf
from typing import TypeVar

import typer

T = TypeVar("T", int, float)


def numbers(flag: str, text: str, number: type[T], *, at_least: T, separator: str = ",") -> tuple[T, ...]:
    """Parse numbers with a separator between them.

    Raises:
        typer.BadParameter: there is none, or one is not a number of at least `at_least`.
    """
    try:
        found = tuple(number(part) for part in text.split(separator))
    except ValueError:
        found = ()
    if not found or not all(at_least <= each < inf for each in found):
        raise typer.BadParameter(
            f"found {text!r}, want numbers of at least {at_least:g}, separated by {separator!r}",
            param_hint=flag,
        )
    return found
