"""docs/engines.md: its figures are those of the recordings."""

from __future__ import annotations

import pytest

from support.engine_page import PAGE, page


@pytest.mark.slow
def test_figures_are_those_of_the_recordings() -> None:
    assert PAGE.read_text() == page(), "run `make engines`"
