"""docs/configuration.md against the schema: one row a key, with its type, default and docstring."""

from __future__ import annotations

import ast
import inspect as source
from pathlib import Path
from typing import cast

import msgspec
from msgspec import inspect

from kvatlas.configs import schema
from kvatlas.configs.describe import expected
from kvatlas.configs.schema import DEFAULT_TIERS, KVAtlasConfig
from kvatlas.configs.units import Duration

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def docstrings() -> dict[tuple[str, str], str]:
    """(class, field) -> the text below the field in the schema's source."""
    texts: dict[tuple[str, str], str] = {}
    for node in ast.parse(source.getsource(schema)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                target, text = cast("ast.Name", field.target), cast("ast.Constant", below.value)
                texts[node.name, target.id] = str(text.value)
    return texts


def default_text(value: object) -> str:
    if value is msgspec.NODEFAULT:
        return "required"
    if value is None:
        return "derived"
    if isinstance(value, Duration):
        return f"`{value}`"
    return f"`{msgspec.json.encode(value).decode()}`"


def rows(info: inspect.StructType, above: str, texts: dict[tuple[str, str], str]) -> list[str]:
    """The table's lines for the keys of one section and all below it."""
    lines: list[str] = []
    for field in info.fields:
        path = f"{above}{field.encode_name}"
        text = texts[info.cls.__name__, field.name]
        match field.type:
            case inspect.StructType():
                lines.append(f"| **`{path}`** | section | | {text} |")
                lines += rows(field.type, f"{path}.", texts)
            case inspect.VarTupleType(item_type=inspect.StructType() as entry):
                default = "three tiers, below" if field.default is DEFAULT_TIERS else "`[]`"
                lines.append(f"| **`{path}`** | {expected(field.type)} | {default} | {text} |")
                lines += rows(entry, f"{path}[].", texts)
            case _:
                default = field.default_factory() if callable(field.default_factory) else field.default
                lines.append(f"| `{path}` | {expected(field.type)} | {default_text(default)} | {text} |")
    return lines


def test_reference_table_is_the_schema() -> None:
    info = inspect.type_info(KVAtlasConfig)
    assert isinstance(info, inspect.StructType)
    table = "\n".join(
        ["| key | value | default | meaning |", "|---|---|---|---|", *rows(info, "", docstrings())]
    )

    assert table in PAGE.read_text(), f"the table in {PAGE.name} must read:\n{table}"


def test_default_tiers_are_on_the_page() -> None:
    page = PAGE.read_text()

    for tier in DEFAULT_TIERS:
        assert f"| `{tier.name}` | {', '.join(f'`{medium}`' for medium in tier.media)} |" in page
