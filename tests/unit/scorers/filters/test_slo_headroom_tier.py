"""`slo-headroom-tier-filter`: which endpoints it keeps, and why it drops the others; the affinity filter by predicted waits."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.params import BuildContext
from support.built import built
from support.candidates import TIERS, endpoint, held
from support.predicted import Times, predicted

REQUEST = RequestView(model="m", now=0.0)
CONTEXT = BuildContext(tiers=TIERS, predictor="predictor")
FLEET = [endpoint(name) for name in "abc"]


def kept(
    table: Candidates, *, draw: float = 0.5, plugin: str = "slo-headroom-tier-filter", **params: Any
) -> str:
    found = built(builtin_registry().filters, plugin, params, CONTEXT).judge(REQUEST, table, rng=lambda: draw)
    dropped = table.take((~found.keep).nonzero()[0])
    assert len(found.reasons(dropped)) == len(dropped)
    return "".join(name for name, keep in zip(table.names, found.keep, strict=True) if keep)


@pytest.mark.parametrize(
    ("times", "draw", "names"),
    [
        pytest.param([(400, 10), (600, 10), (400, 90)], 0.5, "a", id="first_meets_both"),
        pytest.param([(500, 20), (600, 10), (400, 20)], 0.5, "ac", id="no_headroom_is_enough"),
        pytest.param([(400, 10), (600, 10), None], 0.5, "a", id="no_prediction_is_no_proof"),
        pytest.param([(400, 10), (600, 10), None], 0.009, "bc", id="explored"),
        pytest.param([(600, 10), (600, 10), None], 0.5, "abc", id="none_meets_them"),
        pytest.param([(400, 10), (400, 10), (400, 10)], 0.0, "abc", id="all_meet_them"),
        pytest.param([None, None, None], 0.0, "abc", id="nothing_known"),
    ],
)
def test_endpoints_that_meet_the_objectives_are_kept(times: Times, draw: float, names: str) -> None:
    assert kept(predicted(FLEET, times, ttft_ms=500, tpot_ms=20), draw=draw) == names


def test_all_are_kept_without_predictions_and_when_there_is_one() -> None:
    assert kept(Candidates.of(FLEET)) == "abc"
    assert kept(predicted(FLEET[:1], [(600, 10)], ttft_ms=500)) == "a"


def test_reasons_name_the_headroom() -> None:
    table = predicted(FLEET, [(400, 10), (600, 30), None], ttft_ms=500, tpot_ms=20)
    plugin = built(builtin_registry().filters, "slo-headroom-tier-filter", {}, CONTEXT)

    verdicts = plugin.judge(REQUEST, table, rng=lambda: 0.5)

    assert verdicts.reasons(table.take((~verdicts.keep).nonzero()[0])) == [
        "headroom of the first token -100 ms, of an output token -10.0 ms",
        "no prediction",
    ]


@pytest.mark.parametrize(
    ("times", "names"),
    [
        pytest.param([(5200, 1), (200, 1)], "a", id="within_the_penalty"),
        pytest.param([(5201, 1), (200, 1)], "ab", id="above_the_penalty"),
        pytest.param([(9000, 1), None], "ab", id="by_tokens_ahead_when_one_is_unknown"),
    ],
)
def test_affinity_filter_compares_predicted_times(times: Times, names: str) -> None:
    fleet = [endpoint("a", prefix=held(gpu=10), in_flight=(1, 6000)), endpoint("b", prefix=held())]
    table = predicted(fleet, times)

    params: dict[str, Any] = {
        "ttftSource": "latencyPredictor",
        "maxTTFTPenaltyMs": 5000,
        "peakPrefillThroughput": 1000,
    }
    assert kept(table, plugin="prefix-cache-affinity-filter", **params) == names


def test_affinity_filter_sticks_when_no_wait_is_known() -> None:
    fleet = [endpoint("a", prefix=held(gpu=10), in_flight=(1, 6000)), endpoint("b", prefix=held())]

    params: dict[str, Any] = {"ttftSource": "latencyPredictor", "peakPrefillThroughput": 0}
    assert kept(Candidates.of(fleet), plugin="prefix-cache-affinity-filter", **params) == "a"
