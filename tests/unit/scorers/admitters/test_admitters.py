"""Admitters: which requests they refuse, and what is said."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.scorers.admitters.latency_slo import LatencySloAdmitter
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.errors import ParametersError
from support.built import built
from support.candidates import endpoint, load, no_chance
from support.predicted import Times, predicted


def view(priority: int = -1, **headers: str) -> RequestView:
    names = {f"x-llm-d-slo-{key}-ms": value for key, value in headers.items()}
    return RequestView(model="m", now=0.0, headers=names, priority=priority)


BUSY = [endpoint(name, of=load(running=3, kv=0.5)) for name in "ab"]
MISSED: Times = [(600, 10), (500, 30)]
REFUSAL = "no valid endpoint available to serve the request"


@pytest.mark.parametrize(
    ("request_view", "fleet", "times", "reason"),
    [
        pytest.param(view(ttft="500"), BUSY, MISSED, REFUSAL, id="all_miss_it"),
        pytest.param(view(0, ttft="500"), BUSY, MISSED, None, id="not_sheddable"),
        pytest.param(view(), BUSY, MISSED, None, id="no_objective"),
        pytest.param(view(ttft="501"), BUSY, MISSED, None, id="one_meets_it"),
        pytest.param(view(tpot="20"), BUSY, MISSED, None, id="objective_for_output_tokens_alone"),
        pytest.param(view(ttft="550", tpot="20"), BUSY, MISSED, REFUSAL, id="each_meets_another_one"),
        pytest.param(view(ttft="500"), BUSY, [None, None], None, id="no_predictions"),
        pytest.param(view(ttft="500"), BUSY, [(600, 10), None], REFUSAL, id="one_without_a_prediction"),
        pytest.param(
            view(ttft="500"), [BUSY[0], endpoint("b", of=load(running=0, kv=0.5))], MISSED, None, id="idle"
        ),
        pytest.param(
            view(ttft="500"), [BUSY[0], endpoint("b", of=load(running=3, kv=0.01))], MISSED, None, id="cold"
        ),
        pytest.param(view(ttft="500"), [BUSY[0], endpoint("b")], MISSED, None, id="unknown_load"),
    ],
)
def test_latency_slo_admitter_refuses_what_no_endpoint_can_serve_in_time(
    request_view: RequestView, fleet: list[Candidate], times: Times, reason: str | None
) -> None:
    limits = {
        f"{key}_ms": float(request_view.headers.get(f"x-llm-d-slo-{key}-ms", 0.0)) for key in ("ttft", "tpot")
    }
    table = predicted(fleet, times, **limits)

    assert LatencySloAdmitter().admit(request_view, table, rng=no_chance) == reason
    assert LatencySloAdmitter().admit(request_view, Candidates.of(fleet), rng=no_chance) is None


def shed(draw: float, *fleet: Candidate, priority: int = -1, **parameters: Any) -> str | None:
    plugin = built(builtin_registry().admitters, "probabilistic-admitter", parameters)
    return plugin.admit(view(priority), Candidates.of(fleet), rng=lambda: draw)


@pytest.mark.parametrize(
    ("fleet", "parameters", "probability"),
    [
        pytest.param([endpoint(of=load(waiting=0, kv=0.0))], {}, 0.0, id="idle"),
        pytest.param([endpoint(of=load(waiting=1, kv=0.08))], {}, 300 * 0.2**5, id="queue"),
        pytest.param([endpoint(of=load(waiting=0, kv=0.2))], {}, 300 * 0.25**5, id="blocks"),
        pytest.param(
            [endpoint("a", of=load(waiting=2)), endpoint("b", of=load(waiting=0))],
            {},
            300 * 0.2**5,
            id="mean",
        ),
        pytest.param(
            [endpoint("a"), endpoint("b", of=load())], {"power": 1, "k": 0.5}, 0.25, id="unknown_is_saturated"
        ),
        pytest.param([endpoint(of=load(waiting=10))], {"k": 0.001}, 0.032, id="above_1_by_the_curve"),
        pytest.param(
            [endpoint(of=load(waiting=2, kv=0.2))],
            {"queueDepthThreshold": 4, "kvCacheUtilThreshold": 1.0, "power": 2, "k": 1},
            0.25,
            id="thresholds",
        ),
    ],
)
def test_probabilistic_admitter_refuses_with_its_probability(
    fleet: list[Candidate], parameters: dict[str, Any], probability: float
) -> None:
    assert shed(probability + 1e-9, *fleet, **parameters) is None
    if probability:
        assert shed(probability - 1e-9, *fleet, **parameters) is not None
    assert shed(0.0, *fleet, priority=0, **parameters) is None


def test_probabilistic_admitter_says_saturation_and_probability() -> None:
    assert shed(0.999, endpoint(of=load(waiting=10**12))) == (
        "probabilistic-admitter: rejected, saturation=200000000000.000 prob=1.00"
    )


@pytest.mark.parametrize(
    ("parameters", "context", "message"),
    [
        pytest.param({}, BuildContext(), "add a predicted-latency-producer", id="no_predictor"),
        pytest.param(
            {"latencyPredictionInfoProducerName": "p"},
            BuildContext(predictor="q"),
            "found 'p', expected the name of a predicted-latency-producer",
            id="another_name",
        ),
    ],
)
def test_latency_slo_admitter_needs_a_predictor(
    parameters: dict[str, Any], context: BuildContext, message: str
) -> None:
    with pytest.raises(ParametersError, match=message):
        built(builtin_registry().admitters, "latency-slo-admitter", parameters, context)
