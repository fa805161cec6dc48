"""The slope of memory over a run."""

from __future__ import annotations

import math
from random import Random

import pytest

from bench.api.soak_memory import trend


@pytest.mark.parametrize("slope", [0.0, 0.5, -2.0])
def test_slope_is_found_within_its_error(slope: float) -> None:
    rng = Random(3)

    found = trend([100 + slope * second + rng.gauss(0, 5) for second in range(900)])

    assert abs(found.slope - slope) < 4 * found.error
    assert found.error < 0.05


def test_line_has_no_error() -> None:
    found = trend([2.0 * number for number in range(80)])

    assert found.slope == pytest.approx(2.0)
    assert found.error == pytest.approx(0.0, abs=1e-9)


def test_too_few_samples_tell_nothing() -> None:
    assert trend([1.0, 5.0]).error == math.inf
