"""Parts of `make vllm-check` that need no vLLM."""

from __future__ import annotations

import pytest

from kvatlas.scorers.latency.fit import ERROR_HALF_LIFE
from vllm_check.errors_of_half import late_mean


def fading_mean(numbers: list[float]) -> float:
    total = weight = 0.0
    for each in numbers:
        total, weight = (
            old * 0.5 ** (1.0 / ERROR_HALF_LIFE) + new for old, new in ((total, each), (weight, 1.0))
        )
    return total / weight


def test_the_error_of_the_second_half_is_found_from_two_readings() -> None:
    early, late = [0.9] * 54, [0.1, 0.3] * 27

    found = late_mean(fading_mean(early), fading_mean(early + late), len(early), len(early + late))

    assert found == pytest.approx(fading_mean(late))
