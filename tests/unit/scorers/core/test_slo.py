"""Objectives named in headers."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.slo import Slo, slo_of


@pytest.mark.parametrize(
    ("headers", "slo"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({"x-slo-ttft-ms": "200", "x-slo-tpot-ms": "50.5"}, Slo(200.0, 50.5), id="older_names"),
        pytest.param(
            {"x-llm-d-slo-ttft-ms": "100", "x-slo-ttft-ms": "200"}, Slo(100.0, None), id="newer_name_wins"
        ),
        pytest.param({"x-llm-d-slo-tpot-ms": " 50 "}, Slo(None, 50.0), id="one_alone"),
        pytest.param({"x-llm-d-slo-ttft-ms": "abc"}, None, id="no_number"),
        pytest.param({"x-llm-d-slo-ttft-ms": "0", "x-slo-tpot-ms": "-1"}, None, id="not_above_zero"),
        pytest.param({"x-llm-d-slo-ttft-ms": "nan", "x-slo-tpot-ms": "inf"}, None, id="not_finite"),
        pytest.param(
            {"x-slo-ttft-ms": "1.7e308", "x-slo-tpot-ms": "5e-324"}, Slo(1e9, 0.001), id="beyond_all_times"
        ),
    ],
)
def test_objectives_are_numbers_above_zero(headers: dict[str, str], slo: Slo | None) -> None:
    assert slo_of(headers) == slo
