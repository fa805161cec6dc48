"""Paths in configuration files, which are relative to the folder of the file."""

from __future__ import annotations

from functools import cache
from operator import is_
from pathlib import Path
from typing import Annotated, TypeVar, cast

import msgspec
from msgspec.structs import fields, replace

S = TypeVar("S", bound=msgspec.Struct)

PathText = Annotated[str, "a path relative to the configuration file"]
"""Type of every key that names a file or folder of this machine; empty if it names none.

msgspec ignores the annotation: the value is a `str`, and the JSON Schema that of a text.
"""


def with_absolute_paths(section: S, folder: Path) -> S:
    """Return `section` with every `PathText`, its own and those of sections below it, taken from `folder`."""
    changes: dict[str, object] = {}
    for name, is_path in _fields(type(section)):
        before = getattr(section, name)
        after = str(folder / before) if is_path and before else _inside(before, folder)
        if after is not before:
            changes[name] = after
    return replace(section, **changes) if changes else section


@cache  # a fleet has thousands of entries of one type
def _fields(cls: type[msgspec.Struct]) -> tuple[tuple[str, bool], ...]:
    """Return the name of each field, and whether its type is `PathText`."""
    return tuple((field.name, field.type == PathText) for field in fields(cls))


def _inside(value: object, folder: Path) -> object:
    """Return the value of a field with the paths of its sections taken from `folder`; itself if it has none."""
    match value:
        case msgspec.Struct():
            return with_absolute_paths(value, folder)
        case tuple():
            before = cast("tuple[object, ...]", value)
            after = tuple(_inside(each, folder) for each in before)
            return before if all(map(is_, after, before)) else after
        case _:
            return value
