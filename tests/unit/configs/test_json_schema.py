"""The JSON Schema: one definition per struct, limits, defaults, descriptions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from kvatlas.configs.json_schema import definitions, field_texts
from kvatlas.configs.units import Duration


class Leaf(msgspec.Struct, frozen=True, rename="camel"):
    """A section in a list.

    More of it.
    """

    some_port: Annotated[int, Meta(ge=1, le=65535)]
    """Where it listens."""


class Whole(msgspec.Struct, frozen=True, rename="camel", tag_field="kind", tag="Whole"):
    """One field of every kind."""

    leaves: Annotated[tuple[Leaf, ...], Meta(min_length=1, max_length=2)] = (Leaf(some_port=1),)
    labels: dict[str, str] = {}
    anything: dict[str, Any] = {}
    size: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"
    share: Annotated[float, Meta(gt=0, le=0.5)] = 0.25
    delay: Duration = Duration(0.05)
    name: Annotated[str, Meta(min_length=1, max_length=4)] | None = None
    is_on: bool = False


WANTED: dict[str, Any] = {
    "Leaf": {
        "type": "object",
        "description": "A section in a list.",
        "properties": {
            "somePort": {
                "description": "Where it listens.",
                "type": "integer",
                "minimum": 1,
                "maximum": 65535,
            }
        },
        "required": ["somePort"],
        "additionalProperties": False,
    },
    "Whole": {
        "type": "object",
        "description": "One field of every kind.",
        "properties": {
            "kind": {"const": "Whole"},
            "leaves": {
                "type": "array",
                "items": {"$ref": "#/$defs/Leaf"},
                "minItems": 1,
                "maxItems": 2,
                "default": [{"somePort": 1}],
            },
            "labels": {"type": "object", "additionalProperties": {"type": "string"}, "default": {}},
            "anything": {"type": "object", "additionalProperties": {}, "default": {}},
            "size": {"anyOf": [{"type": "integer", "minimum": 1}, {"enum": ["auto"]}], "default": "auto"},
            "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5, "default": 0.25},
            "delay": {"type": "string", "pattern": r"^([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)$", "default": "50ms"},
            "name": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 4}, {"type": "null"}]},
            "isOn": {"type": "boolean", "default": False},
        },
        "required": ["kind"],
        "additionalProperties": False,
    },
}


def test_every_kind_of_field_has_its_schema() -> None:
    assert definitions([Whole]) == WANTED


def test_a_type_without_a_schema_is_a_mistake() -> None:
    class Odd(msgspec.Struct):
        raw: bytes

    with pytest.raises(TypeError, match="has no JSON Schema here"):
        definitions([Odd])


def test_two_structs_of_one_name_are_a_mistake() -> None:
    class Leaf(msgspec.Struct):  # another type of the same name
        x: int

    with pytest.raises(TypeError, match="two structs are called Leaf"):
        definitions([Leaf, Whole])


def test_texts_are_the_docstrings_below_the_fields() -> None:
    assert field_texts(Leaf) == {"some_port": "Where it listens."}
