"""`inflight-load-producer`: estimated output tokens."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.in_flight_load import PLUGIN_TYPE
from support.built import built


@pytest.mark.parametrize(
    ("parameters", "n_prompt", "asked", "n_tokens"),
    [
        pytest.param({}, 100, None, 150, id="default_ratio"),
        pytest.param({}, 1, None, 2, id="half_is_rounded_up"),
        pytest.param({}, 100, 10, 10, id="client_limit"),
        pytest.param({}, 100, 1000, 150, id="client_limit_above"),
        pytest.param({"outputRatio": 3, "maxEstimatedOutputTokens": 50}, 100, None, 50, id="own_limit"),
        pytest.param({"outputRatio": 3, "maxEstimatedOutputTokens": 50}, 10, None, 30, id="ratio"),
        pytest.param({"maxEstimatedOutputTokens": 0}, 10, None, 0, id="limit_of_none"),
    ],
)
def test_output_is_a_multiple_of_the_prompt_up_to_the_limits(
    parameters: dict[str, Any], n_prompt: int, asked: int | None, n_tokens: int
) -> None:
    parameters = {"addEstimatedOutputTokens": True, **parameters}
    estimate = built(builtin_registry().loads, PLUGIN_TYPE, parameters, BuildContext())

    assert estimate.adds_output
    assert estimate.output_tokens(n_prompt, asked=asked) == n_tokens


def test_output_does_not_count_by_default() -> None:
    assert not built(builtin_registry().loads, PLUGIN_TYPE, {}, BuildContext()).adds_output
