"""JSON Schema of configuration files, made from the types of the schema.

msgspec's own schemas lack defaults that it cannot encode, such as durations, and the descriptions that an editor shows.
"""

from __future__ import annotations

import ast
import inspect as source
import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import inspect

from .units import DURATION_PATTERN

REFERENCE = "#/$defs/{}"

Schema = dict[str, Any]


def definitions(types: Iterable[type[msgspec.Struct]]) -> dict[str, Schema]:
    """Return name -> JSON Schema (2020-12) of every struct in `types` and below them."""
    found: dict[str, Schema] = {}
    named: dict[str, type] = {}
    waiting = list(types)
    while waiting:
        cls = waiting.pop()
        if named.setdefault(cls.__name__, cls) is not cls:
            raise TypeError(f"two structs are called {cls.__name__}")
        if cls.__name__ not in found:
            info = inspect.type_info(cls)
            assert isinstance(info, inspect.StructType)  # noqa: S101 - it is a struct
            found[cls.__name__] = _struct(info, waiting)
    return dict(sorted(found.items()))


def field_texts(cls: type[msgspec.Struct]) -> dict[str, str]:
    """Return field -> the docstring below it in the source, those of the structs it is derived from included."""
    bases = [
        each for each in cls.__bases__ if issubclass(each, msgspec.Struct) and each is not msgspec.Struct
    ]
    texts = {name: text for each in bases for name, text in field_texts(each).items()}
    (node,) = ast.parse(textwrap.dedent(source.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)  # noqa: S101 - the source of a class
    for field, below in zip(node.body, node.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = text
            case _:
                pass
    return texts


def _struct(info: inspect.StructType, waiting: list[type[msgspec.Struct]]) -> Schema:
    texts = field_texts(info.cls)
    properties: dict[str, Schema] = {}
    if info.tag_field is not None:
        properties[info.tag_field] = {"const": info.tag}
    for field in info.fields:
        schema = _type(field.type, waiting)
        if field.name in texts:
            schema = {"description": texts[field.name], **schema}
        default = field.default_factory() if callable(field.default_factory) else field.default
        if default is not msgspec.NODEFAULT and default is not None:
            schema["default"] = msgspec.json.decode(msgspec.json.encode(default, enc_hook=str))
        properties[field.encode_name] = schema
    required = [] if info.tag_field is None else [info.tag_field]
    required += [field.encode_name for field in info.fields if field.required]
    return {
        "type": "object",
        "description": (info.cls.__doc__ or "").partition("\n")[0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _type(info: inspect.Type, waiting: list[type[msgspec.Struct]]) -> Schema:
    match info:
        case inspect.StructType():
            waiting.append(info.cls)
            return {"$ref": REFERENCE.format(info.cls.__name__)}
        case inspect.VarTupleType():
            lengths = {"minItems": info.min_length or None, "maxItems": info.max_length}
            return {"type": "array", "items": _type(info.item_type, waiting), **_given(lengths)}
        case inspect.DictType():
            return {"type": "object", "additionalProperties": _type(info.value_type, waiting)}
        case inspect.UnionType():
            return {"anyOf": [_type(each, waiting) for each in info.types]}
        case inspect.LiteralType():
            return {"enum": list(info.values)}
        case _:
            return _scalar(info)


def _scalar(info: inspect.Type) -> Schema:
    match info:
        case inspect.IntType():
            return {"type": "integer", **_limits(info)}
        case inspect.FloatType():
            return {"type": "number", **_limits(info)}
        case inspect.StrType():
            lengths = {"minLength": info.min_length or None, "maxLength": info.max_length}
            return {"type": "string", **_given(lengths)}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.NoneType():
            return {"type": "null"}
        case inspect.AnyType():
            return {}
        case inspect.CustomType():
            return {"type": "string", "pattern": f"^{DURATION_PATTERN}$"}
        case _:
            raise TypeError(f"the schema uses {info}, which has no JSON Schema here")


def _limits(info: inspect.IntType | inspect.FloatType) -> Mapping[str, float]:
    return _given({"minimum": info.ge, "exclusiveMinimum": info.gt, "maximum": info.le})


def _given(keywords: Mapping[str, float | None]) -> dict[str, float]:
    """Return the keywords that have a value, with whole numbers as integers."""
    return {
        keyword: int(value) if math.isfinite(value) and value == int(value) else value
        for keyword, value in keywords.items()
        if value is not None
    }
