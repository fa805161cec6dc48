"""Conversion of plain data to the schema, with every problem and its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from math import isfinite
from typing import Annotated, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import inspect

from .describe import expected, found
from .errors import KeyPath, Problem
from .units import Duration
from .words import nearest

S = TypeVar("S", bound=msgspec.Struct)


def decode(data: object, schema: type[S]) -> S | list[Problem]:
    """Return `data` as `schema`, or every problem with it."""
    problems: list[Problem] = []
    _check(data, schema, inspect.type_info(schema), (), problems)
    return problems or msgspec.convert(data, schema, dec_hook=_duration)


def _duration(_: type, value: object) -> Duration:
    """Decode the only type of the schema that msgspec does not know; msgspec rejects the result for any other type."""
    return Duration.parse(value)


def _check(value: object, wanted: object, info: inspect.Type, path: KeyPath, problems: list[Problem]) -> None:
    """Add the problems of `value` to `problems`; `info` is the type that msgspec derives from the annotation `wanted`."""
    match info, value:
        case inspect.StructType(), dict():
            _check_struct(cast("Mapping[object, object]", value), info, path, problems)
        case inspect.UnionType(), dict() if (struct := _only_struct(info)) is not None:
            _check_struct(cast("Mapping[object, object]", value), struct, path, problems)
        case inspect.VarTupleType(), list():
            entries = cast("Sequence[object]", value)
            if not (info.min_length or 0) <= len(entries) <= (info.max_length or len(entries)):
                problems.append(Problem(f"found {len(entries)} entries, expected {expected(info)}", path))
            for number, entry in enumerate(entries):
                _check(entry, _argument(wanted, 0), info.item_type, (*path, number), problems)
        case inspect.DictType(), dict():
            for key, entry in cast("Mapping[object, object]", value).items():
                _check(key, _argument(wanted, 0), info.key_type, (*path, str(key)), problems)
                _check(entry, _argument(wanted, 1), info.value_type, (*path, str(key)), problems)
        case _:
            _check_leaf(value, wanted, info, path, problems)


def _only_struct(info: inspect.UnionType) -> inspect.StructType | None:
    """Return the type that a mapping must have, None if the union has none or more than one."""
    structs = [each for each in info.types if isinstance(each, inspect.StructType)]
    others = any(isinstance(each, inspect.DictType) for each in info.types)
    return structs[0] if len(structs) == 1 and not others else None


def _argument(annotation: object, position: int) -> object:
    """Return a type argument of `tuple[X, ...]` or `dict[K, V]`, with or without `Annotated` around it."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        arguments = get_args(arguments[0])
    return cast("object", arguments[position])


def _check_struct(
    value: Mapping[object, object], info: inspect.StructType, path: KeyPath, problems: list[Problem]
) -> None:
    if info.tag_field is not None and value.get(info.tag_field) != info.tag:
        shown = f"found {found(value[info.tag_field])}" if info.tag_field in value else "missing"
        problems.append(Problem(f"{shown}, expected {info.tag!r}", (*path, info.tag_field)))
        return  # another kind of file, for which further problems mean nothing
    annotations = {field.encode_name: field.type for field in msgspec.structs.fields(info.cls)}
    known = [*annotations] if info.tag_field is None else [info.tag_field, *annotations]
    problems.extend(_unknown_key(key, known, path) for key in value if key not in known)
    for field in info.fields:
        here = (*path, field.encode_name)
        if field.encode_name in value:
            _check(value[field.encode_name], annotations[field.encode_name], field.type, here, problems)
        elif field.required:
            problems.append(Problem(f"missing, expected {_wanted(field.type)}", here))


def _unknown_key(key: object, known: Sequence[str], path: KeyPath) -> Problem:
    return Problem(f"unknown key; {nearest(str(key), known, label='allowed')}", (*path, str(key)))


def _check_leaf(
    value: object, wanted: object, info: inspect.Type, path: KeyPath, problems: list[Problem]
) -> None:
    if not _is_valid(value, wanted, info):
        scalar = isinstance(value, bool | int | float | date)
        hint = " (put it in quotes)" if scalar and isinstance(info, inspect.StrType) else ""
        problems.append(Problem(f"found {found(value)}, expected {_wanted(info)}{hint}", path))


def _is_valid(value: object, wanted: object, info: inspect.Type) -> bool:
    """Return whether a value has a type. No number of a configuration is infinite; parameters of plugins have schemas of their own."""
    try:
        decoded = msgspec.convert(value, cast("type[object]", wanted), dec_hook=_duration)
    except msgspec.ValidationError:
        return False
    return not isinstance(decoded, float) or isfinite(decoded) or isinstance(info, inspect.AnyType)


def _wanted(info: inspect.Type) -> str:
    """Return words for a type; parameters of third-party plugins may have types that this schema does not use."""
    try:
        return expected(info)
    except TypeError:
        return "another value"
