"""Quantities and durations as files of the reference picker write them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

from .errors import KeyPath, Problem

Quantity: TypeAlias = int | float | str
"""A number, or a text such as `1Gi` or `5k`."""

_DURATION = re.compile(r"[+-]?(0|((\d+(\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h))+)")
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?")


def duration_problem(path: KeyPath, text: str | None) -> Iterator[Problem]:
    """Yield the problem of a duration in Go's form; None is absent and has none."""
    if text is not None and _DURATION.fullmatch(text) is None:
        yield Problem(
            f"found {text!r}, expected a duration such as 500ms, 60s or 1m30s, or 0s for none", path
        )


def duration_s(text: str) -> float:
    """Return the seconds of a duration in Go's form that has no problem."""
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    return -seconds if text.startswith("-") else seconds


def quantity_problem(path: KeyPath, value: Quantity | None) -> Iterator[Problem]:
    """Yield the problem of a quantity in Kubernetes' form; None is absent and has none."""
    if value is not None and _QUANTITY.fullmatch(str(value)) is None:
        yield Problem(f"found {value!r}, expected a quantity such as 1Gi, 5k or 100", path)


def negative_problem(path: KeyPath, value: Quantity | None) -> Iterator[Problem]:
    """Yield the problem of a well-formed duration or quantity below 0."""
    if str(value).startswith("-"):
        yield Problem(f"found {value!r}, expected none below 0", path)
