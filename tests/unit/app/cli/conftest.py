"""Fixtures of the command line's tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """Leave the root logger as it was: `kvatlas serve` has it write to a standard error that ends with the test."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers[:] = []  # those that it finds are closed
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
