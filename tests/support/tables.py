"""Tables of configuration keys for the documentation, made from the structs they describe."""

from __future__ import annotations

import msgspec
from msgspec import inspect

from kvatlas.configs.describe import expected
from kvatlas.configs.json_schema import field_texts
from kvatlas.configs.schema import DEFAULT_TIERS
from kvatlas.configs.units import Duration

HEAD = ["| key | value | default | meaning |", "|---|---|---|---|"]


def key_table(cls: type[msgspec.Struct]) -> str:
    """Return one row per key of `cls` and its nested structs: path, type, default, docstring.

    The keys of a section with two places are listed at the first; the docstring of the other says so.
    """
    info = inspect.type_info(cls)
    assert isinstance(info, inspect.StructType)
    return "\n".join([*HEAD, *_rows(info, "", set())])


def _rows(info: inspect.StructType, above: str, listed: set[type]) -> list[str]:
    if info.cls in listed:
        return []
    listed.add(info.cls)
    lines: list[str] = []
    texts = field_texts(info.cls)
    for field in info.fields:
        path = f"{above}{field.encode_name}"
        text = texts[field.name]
        match field.type:
            case inspect.StructType():
                lines.append(f"| **`{path}`** | section | | {text} |")
                lines += _rows(field.type, f"{path}.", listed)
            case inspect.VarTupleType(item_type=inspect.StructType() as entry):
                lines.append(f"| **`{path}`** | {expected(field.type)} | {_default(field)} | {text} |")
                lines += _rows(entry, f"{path}[].", listed)
            case inspect.DictType(value_type=inspect.StructType() as entry):
                lines.append(f"| **`{path}`** | {expected(field.type)} | {_default(field)} | {text} |")
                lines += _rows(entry, f"{path}.NAME.", listed)
            case _:
                lines.append(f"| `{path}` | {expected(field.type)} | {_default(field)} | {text} |")
    return lines


def _default(field: inspect.Field) -> str:
    value: object = field.default_factory() if callable(field.default_factory) else field.default
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None:
        return "derived"
    if value is DEFAULT_TIERS:
        return "three tiers, below"
    if isinstance(value, Duration):
        return f"`{value}`"
    return f"`{msgspec.json.encode(value).decode()}`"
