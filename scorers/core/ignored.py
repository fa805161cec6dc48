"""Parameters of the reference's plugins that are accepted without effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast, get_type_hints

import msgspec


@dataclass(frozen=True, slots=True)
class Ignored:
    """Mark of such a parameter, in the `Annotated` of its field.

    Attributes:
        why: the reason, for people.
    """

    why: str


def ignored(params: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Yield the path and the reason of each marked parameter that is not at its default, nested ones included.

    Cost: type hints of the structs are evaluated. Called once per plugin and configuration.
    """
    for field, mark in _marked(type(params)):
        value = getattr(params, field.name)
        if mark is None:
            for key, why in ignored(value) if isinstance(value, msgspec.Struct) else ():
                yield f"{field.encode_name}.{key}", why
        elif value != _default(field):
            yield field.encode_name, mark.why


def _marked(cls: type[msgspec.Struct]) -> tuple[tuple[msgspec.structs.FieldInfo, Ignored | None], ...]:
    """Return the fields, each with its mark; None if it has none."""
    hints = get_type_hints(cls, include_extras=True)
    return tuple((field, _mark(hints[field.name])) for field in msgspec.structs.fields(cls))


def _mark(hint: object) -> Ignored | None:
    extras = cast("tuple[object, ...]", getattr(hint, "__metadata__", ()))
    return next((each for each in extras if isinstance(each, Ignored)), None)


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default_factory() if callable(field.default_factory) else field.default
