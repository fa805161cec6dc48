"""Checks of long lists of integers in bodies."""

from __future__ import annotations

from array import array

from pydantic import ValidatorFunctionWrapHandler


def checked_token_ids(value: object, check_each: ValidatorFunctionWrapHandler) -> object:
    """Check a list of token ids at once, a tenth of the cost of checking each; each is checked if one is wrong."""
    if isinstance(value, list):
        try:
            array("I", value)
        except (TypeError, OverflowError):
            pass
        else:
            return value
    return check_each(value)


def checked_hashes(value: object, check_each: ValidatorFunctionWrapHandler) -> object:
    """Check a list of 64-bit hashes, as `checked_token_ids` does."""
    if isinstance(value, list):
        for code in "Qq":
            try:
                array(code, value)
            except (TypeError, OverflowError):
                continue
            return value
    return check_each(value)
