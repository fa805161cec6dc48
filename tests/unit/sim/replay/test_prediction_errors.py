"""Predictions of the cost model on a fleet of two speeds with a CPU tier: made before deciding, compared after."""

from __future__ import annotations

import pytest

from kvatlas.sim.replay.prediction_errors import mape, prediction_log
from kvatlas.sim.traces.agents import AgentsSpec, agents_trace
from kvatlas.sim.workloads import TWO_SPEEDS

TRACE = agents_trace(AgentsSpec(agents=60, turns=10, starts_per_s=0.4), seed=1)
WARM_UP = 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group_label", "ttft", "tpot"), [pytest.param("speed", 0.12, 0.1), pytest.param("", 0.15, 0.13)]
)
def test_times_are_predicted_with_and_without_a_label_of_the_speed(
    group_label: str, ttft: float, tpot: float
) -> None:
    log = prediction_log(TRACE, TWO_SPEEDS, group_label=group_label, granularity=8)

    assert len(log.ttft) == 600
    assert mape(log.ttft, after=WARM_UP) < ttft
    assert mape(log.tpot, after=WARM_UP) < tpot
