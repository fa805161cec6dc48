"""The choice of the index core."""

from __future__ import annotations

import importlib.util
import sys
from array import array
from types import ModuleType

import pytest

from kvatlas.indexer import factory
from kvatlas.indexer.errors import IndexerError
from kvatlas.indexer.factory import index_core


@pytest.fixture
def without_native(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Load the module as without the extension."""
    monkeypatch.setitem(sys.modules, "kvatlas.indexer.native_index", None)
    spec = importlib.util.spec_from_file_location("kvatlas.indexer.factory", factory.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "kvatlas.indexer.factory", module)
    spec.loader.exec_module(module)
    return module


def test_native_core_is_taken_where_it_was_built() -> None:
    pytest.importorskip(
        "kvatlas.indexer._native", reason="the native core was not built: install g++, and run make again"
    )
    assert index_core() is index_core("native")
    assert index_core("native").name == "native"


def test_reference_can_be_forced() -> None:
    core = index_core("reference")
    index = core.make_index()
    holder = index.open()
    index.store(holder, core.prefix_keys(array("I", range(8)), 4, seed=0))
    assert (core.name, index.size(holder)) == ("reference", 2)


def test_reference_is_taken_where_native_was_not_built(without_native: ModuleType) -> None:
    assert without_native.index_core().name == "reference"


def test_forced_native_core_is_refused_where_it_was_not_built(without_native: ModuleType) -> None:
    with pytest.raises(IndexerError, match=r"was not built.*compiler"):
        without_native.index_core("native")


def test_unknown_core_is_refused_with_the_known_ones() -> None:
    with pytest.raises(IndexerError, match=r"'rust'.*native or reference"):
        index_core("rust")
