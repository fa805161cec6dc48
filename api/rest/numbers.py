"""Checks of long lists of integers in bodies."""

from __future__ import annotations

from array import array
from typing import cast

from pydantic import ValidatorFunctionWrapHandler


def checked_token_ids(value: object, check_each: ValidatorFunctionWrapHandler) -> object:
    """Check a list of token ids at once, a tenth of the cost of checking each; each is checked if one is wrong."""
    return value if _fits(value, "I") else check_each(value)


def checked_hashes(value: object, check_each: ValidatorFunctionWrapHandler) -> object:
    """Check a list of 64-bit hashes, as `checked_token_ids` does; signed ones become unsigned."""
    if _fits(value, "Q"):
        return value
    if _fits(value, "q"):
        return array("Q", array("q", cast("list[int]", value)).tobytes()).tolist()
    return check_each(value)


def _fits(value: object, code: str) -> bool:
    """Return whether `value` is a list of integers that fit in an array of that type."""
    if not isinstance(value, list):
        return False
    try:
        array(code, cast("list[int]", value))
    except (TypeError, OverflowError):
        return False
    return True
