"""Lists of numbers in options."""

from __future__ import annotations

from math import inf
from typing import TypeVar

import typer

T = TypeVar("T", int, float)


def numbers(
    flag: str, text: str, number: type[T], *, at_least: T, at_most: T | None = None, separator: str = ","
) -> tuple[T, ...]:
    """Parse numbers with a separator between them.

    Raises:
        typer.BadParameter: there is none, or one is not a number of at least `at_least` and at most `at_most`, if it is given.
    """
    try:
        found = tuple(number(part) for part in text.split(separator))
    except ValueError:
        found = ()
    limit = inf if at_most is None else at_most
    if not found or not all(at_least <= each <= limit and each < inf for each in found):
        want = f"of at least {at_least:g}" if at_most is None else f"from {at_least:g} to {at_most}"
        raise typer.BadParameter(
            f"found {text!r}, want numbers {want}, separated by {separator!r}",
            param_hint=flag,
        )
    return found
