"""Words for people: types of the schema and values of a file."""

from __future__ import annotations

import math

from msgspec import inspect

from .listeners import HOST_PATTERN
from .units import Duration

_MAX_SHOWN_CHARS = 60

_MAX_PATTERN_CHARS = 20
"""A longer regular expression explains nothing to a reader."""

_FORMS = {HOST_PATTERN: "a host name such as kv.example, *.corp.example or *"}
"""Longer regular expressions, in words."""


def expected(info: inspect.Type) -> str:
    """Describe the valid values of a type, such as `a whole number from 1 to 65535`."""
    match info:
        case inspect.UnionType():
            words = " or ".join(
                expected(each) for each in info.types if not isinstance(each, inspect.NoneType)
            )
        case inspect.LiteralType():
            words = " or ".join(f"{value!r}" for value in info.values)
        case inspect.IntType():
            words = "a whole number" + _limits(info)
        case inspect.FloatType():
            words = "a number" + _limits(info)
        case inspect.BoolType():
            words = "true or false"
        case inspect.StrType():
            words = _text(info)
        case inspect.VarTupleType():
            words = "a list" + _length(info.min_length, info.max_length, "entries")
        case inspect.DictType():
            words = "a mapping"
        case inspect.StructType():
            words = "a mapping with keys " + ", ".join(field.encode_name for field in info.fields)
        case inspect.CustomType() if info.cls is Duration:
            words = "a duration like 50ms, 2s or 1m, above zero"
        case _:
            raise TypeError(f"the schema uses {info}, which has no words here")
    return words


_INT64 = 2**63 - 1
"""A limit that is not worth words."""


def _text(info: inspect.StrType) -> str:
    if info.pattern in _FORMS:
        return _FORMS[info.pattern]
    words = "text" + _length(info.min_length, info.max_length, "characters")
    is_short = info.pattern is not None and len(info.pattern) <= _MAX_PATTERN_CHARS
    return f"{words} that matches {info.pattern}" if is_short else words


def _limits(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None and info.le != _INT64:
        return f" from {_limit(info.ge)} to {_limit(info.le)}"
    if info.ge is not None:
        return f" of at least {_limit(info.ge)}"
    if info.gt is None:
        return ""
    return f" above {_limit(info.gt)}" + (f", at most {_limit(info.le)}" if info.le is not None else "")


def _limit(value: float) -> str:
    """Return the limit as text; whole numbers are written in full."""
    return str(int(value)) if value == int(value) else str(value)


def _length(low: int | None, high: int | None, unit: str) -> str:
    if low and high:
        return f" of {low} to {high} {unit}"
    if low:
        return ", not empty"
    return f" of at most {high} {unit}" if high else ""


def found(value: object) -> str:
    """Describe a value of the file in at most one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "infinity"
        case str():
            text = repr(value)
            return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}...'"
        case int() if abs(value) > _INT64:
            return f"{value}, which is too large"
        case _:
            return str(value)
