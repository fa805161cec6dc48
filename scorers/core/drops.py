"""Candidates that filters drop, and requests that admitters refuse, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .candidates import Candidates
from .columns import RowArray
from .ratings import Reasons


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """Why a candidate was dropped: the name of the filter in the profile, and its reason for people."""

    by: str
    reason: str


class Denied(msgspec.Struct, frozen=True, gc=False):
    """Why a request was refused: the name of the admitter, and its reason for the client."""

    by: str
    reason: str


class Drop(msgspec.Struct, frozen=True):
    """The candidates that one filter dropped.

    Attributes:
        by: name of the filter in the profile.
        rows: their rows in the table of all candidates.
        reasons: makes their reasons, from a table of these rows; see `Verdicts`.
    """

    by: str
    rows: RowArray
    reasons: Reasons


def reasons_of(drop: Drop, candidates: Candidates) -> Sequence[str]:
    """Return why a filter dropped these rows of `candidates`. A plugin that fails to say it gives a text that says so."""
    n = len(drop.rows)
    try:
        reasons = list(drop.reasons(candidates.take(drop.rows)))
    except Exception as error:  # noqa: BLE001 - any exception of a plugin must cost only its own result
        return [f"unknown: {type(error).__name__}"] * n
    return reasons if len(reasons) == n else ["unknown"] * n
