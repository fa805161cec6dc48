"""Parts of `make vllm-check` that need no vLLM."""

from __future__ import annotations

import pytest

from kvatlas.scorers.latency.fit import ERROR_HALF_LIFE
from vllm_check.errors_of_half import late_mean
from vllm_check.number_format import format_for
from vllm_check.report_times import best_constant_error


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


def test_the_best_constant_weighs_short_times_more() -> None:
    # errors of 1: 0, 0, 2/3; of 3: 2, 2, 0
    assert best_constant_error([1.0, 3.0, 1.0]) == pytest.approx(2 / 9)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        pytest.param("fma avx2 avx512f avx512_bf16", "bfloat16", id="avx512"),
        pytest.param("avx2 amx_bf16 amx_tile", "bfloat16", id="amx"),
        pytest.param("fma avx2 avx512f", "float32", id="no_instructions_for_bfloat16"),
    ],
)
def test_numbers_are_of_a_format_that_the_processor_has_instructions_for(flags: str, name: str) -> None:
    assert format_for(f"model name\t: x\nflags\t\t: fpu {flags}\n").name == name
