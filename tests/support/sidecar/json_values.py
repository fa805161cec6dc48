"""Decoded JSON of unknown form, seen as what it should be."""

from __future__ import annotations

from typing import Any, cast

Json = dict[str, Any]


def is_object(value: object) -> bool:
    """Return whether a value is an object, without a type checker's conclusion about its items."""
    return isinstance(value, dict)


def is_list(value: object) -> bool:
    """Return whether a value is a list, likewise."""
    return isinstance(value, list)


def as_object(value: object) -> Json:
    """Return a value that is an object, an empty one in place of anything else."""
    return cast("Json", value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a value that is a list, an empty one in place of anything else."""
    return value if isinstance(value, list) else []  # pyright: ignore[reportUnknownVariableType]
