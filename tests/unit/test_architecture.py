"""The journeys of docs/architecture.md: every name exists, and no journey comes back to a module it has left."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from support.tree import ROOT, read, syntax_tree

PAGE = Path("docs/architecture.md")
JOURNEY = re.compile(r"^### (.+?)\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"`([\w/]+\.py):([\w.]+)`")
N_JOURNEYS = 5


def journeys() -> dict[str, list[tuple[Path, str]]]:
    """Heading of each journey to the modules and names on the way."""
    return {
        heading: [(Path(path), name) for path, name in NAME.findall(text)]
        for heading, text in JOURNEY.findall(read(PAGE))
    }


def names_in(source: str) -> set[str]:
    """Functions and classes of a module, and the methods of its classes as `Class.method`."""
    return set(_names(syntax_tree(source).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name, body=inner):
                yield prefix + name
                yield from _names(inner, f"{prefix}{name}.")
            case _:
                pass


def test_page_has_every_journey() -> None:
    found = journeys()
    assert len(found) == N_JOURNEYS
    assert all(len(names) >= 3 for names in found.values())


def test_every_name_on_a_journey_exists() -> None:
    missing = [
        f"{path}:{name}"
        for names in journeys().values()
        for path, name in names
        if not (ROOT / path).is_file() or name not in names_in(read(path))
    ]
    assert missing == []


def test_no_journey_comes_back_to_a_module_it_has_left() -> None:
    for heading, names in journeys().items():
        modules = [path for path, _ in groupby(names, key=lambda each: each[0])]
        assert len(modules) == len(set(modules)), heading


@pytest.mark.parametrize(
    ("source", "name", "exists"),
    [
        pytest.param("def f(): ...", "f", True, id="function"),
        pytest.param("class A:\n  async def f(self): ...", "A.f", True, id="method"),
        pytest.param("class A:\n  async def f(self): ...", "f", False, id="method_without_its_class"),
        pytest.param("x = 1", "x", False, id="variable"),
    ],
)
def test_name_rule_knows_what_a_module_defines(source: str, name: str, exists: bool) -> None:
    assert (name in names_in(source)) is exists
