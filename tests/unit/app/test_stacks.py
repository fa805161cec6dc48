"""Stacks in words: where, and never a value."""

from __future__ import annotations

import inspect
import re

import pytest
from prometheus_client.metrics_core import Metric

from kvatlas.app.stacks import described, where
from kvatlas.configs.address import HostPort
from kvatlas.fleet.families import StateCollector


def test_where_names_calls_of_kvatlas_alone() -> None:
    found: list[str] = []

    def families() -> list[Metric]:
        found.append(where(inspect.currentframe()))
        return []

    list(StateCollector(families).collect())

    assert re.fullmatch(r"kvatlas\.fleet\.families:\d+ collect", found[0])
    assert where(inspect.currentframe()).startswith("no code of kvatlas")
    assert where(None).startswith("no code of kvatlas")


def test_error_is_described_by_type_and_calls_without_its_text() -> None:
    with pytest.raises(ValueError, match="secret") as raised:
        HostPort.parse("secret")

    assert re.fullmatch(r"\w*Error in kvatlas\.configs\.address:\d+ \w+.*", described(raised.value))
    assert "secret" not in described(raised.value)


def test_group_of_errors_is_described_by_each() -> None:
    group = BaseExceptionGroup("of tasks", [KeyError("secret"), TypeError("secret")])

    assert described(group) == "KeyError in no code of kvatlas; TypeError in no code of kvatlas"
