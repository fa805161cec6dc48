"""Parts of `make vllm-check` that need no vLLM."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.scorers.latency.fit_sums import ERROR_HALF_LIFE
from kvatlas.sim.workload import Turn, WorkloadResult
from vllm_check.errors import CheckError
from vllm_check.errors_of_half import Errors, late_mean
from vllm_check.number_format import format_for
from vllm_check.report_times import best_constant_error, render_times
from vllm_check.routing import WORKLOAD, Run, latency_arm


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
    ("errors", "ttft", "tpot"),
    [
        pytest.param(Errors(ttft=0.25, tpot=0.1), "25.0% | 25%", "10.0% | 10%", id="predicts"),
        pytest.param(None, " | ", " | ", id="predicts_nothing"),
    ],
)
def test_times_of_a_policy_are_shown_with_its_errors(errors: Errors | None, ttft: str, tpot: str) -> None:
    turns = [Turn("a", 0.5, 0.5 + 0.07 * each, prompt_tokens=9, cached_tokens=0) for each in (1, 1, 2, 2)]
    run = Run(
        arm="latency",
        spec=WORKLOAD,
        workload=WorkloadResult(turns),
        tiers={},
        elapsed_s=1,
        server_s=1,
        errors=errors,
    )

    row = f"| 8 tokens | 500 ms | {ttft} | 15 ms | {tpot} | 0.0% |"

    assert row in render_times([[run]])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param("a: [", "cannot read", id="no_yaml"),
        pytest.param("latency", "want sections", id="no_sections"),
    ],
)
def test_policy_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "latency.yaml"
    if text is not None:
        file.write_text(text)

    with pytest.raises(CheckError, match=problem):
        latency_arm(file)


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
