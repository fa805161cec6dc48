"""The choice of the column operations: native if they were built, otherwise their specification."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec

import pytest

from kvatlas.scorers.core import arithmetic, lines, operations

WITHOUT_NATIVE = {
    name: getattr(lines if name == "packed" else arithmetic, name) for name in operations.__all__
}


def test_operations_are_the_specification_when_nothing_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvatlas.scorers._native", None)
    monkeypatch.delitem(sys.modules, operations.__name__)

    chosen = runpy.run_module(operations.__name__)

    assert {name: chosen[name] for name in operations.__all__} == WITHOUT_NATIVE


@pytest.mark.skipif(find_spec("kvatlas.scorers._native") is None, reason="the native part was not built")
def test_operations_are_the_native_ones_when_they_were_built() -> None:
    assert {getattr(operations, name).__module__ for name in operations.__all__} == {
        "kvatlas.scorers._native"
    }
