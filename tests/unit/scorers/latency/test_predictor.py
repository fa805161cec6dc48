"""`predicted-latency-producer`: what it predicts, what it learns from, and the objectives that count."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import PREFILL, Decision, Origin, Placement, Stage
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.predictions import Predictions
from kvatlas.scorers.core.slo import Slo
from kvatlas.scorers.latency.attainment import SloAttainmentParams, SloAttainmentScorer
from kvatlas.scorers.latency.fit import MIN_OBSERVATIONS
from kvatlas.scorers.latency.predictor import LatencyPredictor, PredictedLatencyParams
from support.candidates import endpoint, held, load
from support.rating import routed_to

SLO = {"x-slo-ttft-ms": "500", "x-slo-tpot-ms": "40"}
REQUEST = RequestView(model="m", now=0.0, n_tokens=160, headers=SLO)
NAMED = Origin("r", "", "", 0, "default-flow", Slo(500.0, 40.0))


def predictor(**params: Any) -> LatencyPredictor:
    return LatencyPredictor(PredictedLatencyParams(**params), ("gpu", "cpu"))


def taught(
    model: LatencyPredictor, *, labels: dict[str, str] | None = None, n: int = 800
) -> LatencyPredictor:
    """Teach 20 ms, 1 ms per uncached token, 30 ms per output token and 1 ms per request beside it."""
    for number in range(n):
        tokens, beside = 16 * (1 + number % 29), number % 7
        candidate = endpoint(
            labels=labels or {},
            prefix=held(n_blocks=tokens // 16),
            of=load(running=beside),
            in_flight=(beside // 2, 0),
        )
        decision = routed_to(candidate, n_tokens=tokens)
        model.answered(decision, ttft_s=(20 + tokens) / 1000)
        model.ended(decision, tpot_s=(30 + beside) / 1000)
    return model


def ask(model: LatencyPredictor, *fleet: Candidate, request: RequestView = REQUEST) -> Predictions:
    predictions = model.predict(request, Candidates.of(fleet))
    assert predictions is not None
    return predictions


def routed(name: str, origin: Origin) -> Decision:
    return msgspec.structs.replace(routed_to(endpoint(name)), origin=origin)


def test_nothing_is_predicted_before_enough_is_known_or_when_it_is_off() -> None:
    table = Candidates.of([endpoint()])
    assert predictor().predict(REQUEST, table) is None
    assert taught(predictor(), n=MIN_OBSERVATIONS - 1).predict(REQUEST, table) is None
    assert taught(predictor(predict_in_produce=False)).predict(REQUEST, table) is None


def test_times_and_headrooms_are_predicted_from_what_was_learned() -> None:
    model = taught(predictor(streaming_mode=True))
    cold, warm = endpoint("cold", of=load(running=6)), endpoint("warm", prefix=held(gpu=10), of=load())

    found = ask(model, cold, warm)

    assert found.ttft_ms.tolist() == pytest.approx([180, 20], rel=0.15)
    assert found.tpot_ms.tolist() == pytest.approx([36, 30], rel=0.05)
    assert found.ttft_headroom_ms.tolist() == (500 - found.ttft_ms).tolist()
    assert found.tpot_headroom_ms.tolist() == (40 - found.tpot_ms).tolist()


def test_an_objective_that_is_not_named_counts_as_zero() -> None:
    found = ask(taught(predictor(streaming_mode=True)), endpoint(), request=RequestView("m", 0.0))

    assert found.ttft_headroom_ms.tolist() == (-found.ttft_ms).tolist()
    assert found.tpot_headroom_ms.tolist() == (-found.tpot_ms).tolist()


@pytest.mark.parametrize("objective", ["5e-324", "1.7e308"])
def test_predictions_are_compared_with_any_objective_in_finite_numbers(objective: str) -> None:
    model, fleet = (
        taught(predictor(streaming_mode=True, slo_buffer_factor=2.0)),
        (endpoint("a"), endpoint("b")),
    )
    request = msgspec.structs.replace(REQUEST, headers=dict.fromkeys(SLO, objective))

    found = ask(model, *fleet, request=request)
    rated = SloAttainmentScorer(SloAttainmentParams()).rate(request, Candidates.of(fleet).predicted(found))

    assert np.isfinite(found.lasting().figures).all()
    assert np.isfinite(rated.scores).all()


def test_time_per_output_token_has_no_part_without_streaming_mode_or_before_it_is_learned() -> None:
    unlearned = predictor(streaming_mode=True)
    for _ in range(MIN_OBSERVATIONS + 1):
        unlearned.answered(routed_to(endpoint(), n_tokens=100), ttft_s=0.1)
    for model in (taught(predictor()), unlearned):
        found = ask(model, endpoint())
        assert (math.isnan(found.tpot_ms[0]), found.tpot_headroom_ms[0]) == (True, 0.0)


def test_lowest_objective_of_requests_on_the_endpoint_counts_until_they_end() -> None:
    model = taught(predictor(streaming_mode=True, slo_buffer_factor=0.5))
    strict, lax = (msgspec.structs.replace(NAMED, slo=Slo(None, limit)) for limit in (10.0, 90.0))
    decisions = [routed("a", strict), routed("a", strict), routed("a", lax), routed("gone", strict)]
    for each in decisions:
        model.picked(REQUEST, each)

    def limits() -> list[float]:
        found = ask(model, endpoint("a"), endpoint("b"))
        both: list[float] = (found.tpot_headroom_ms + found.tpot_ms).tolist()
        return both

    assert limits() == pytest.approx([5, 20])
    model.ended(decisions[0], tpot_s=None)
    assert limits() == pytest.approx([5, 20])
    for each in decisions[1:]:
        model.ended(each, tpot_s=None)
    model.ended(decisions[0], tpot_s=None)  # picked before this predictor was in force
    assert limits() == pytest.approx([20, 20])


def test_roles_are_learned_apart_and_prefill_has_no_time_per_output_token() -> None:
    model = predictor(streaming_mode=True, endpoint_role_label="role")
    taught(model, labels={"role": "decode"})
    taught(model, labels={"role": "prefill"})

    found = ask(model, *(endpoint(role, labels={"role": role}) for role in ("decode", "prefill", "other")))

    assert found.is_known.tolist() == [True, True, False]
    assert found.tpot_headroom_ms[1] == 0.0
    assert [math.isnan(each) for each in found.tpot_ms.tolist()] == [False, True, True]
    assert math.isnan(found.tpot_headroom_ms[2])


def test_costs_are_reported_with_the_error_of_what_was_predicted() -> None:
    model = taught(predictor())

    (ttft,), (tpot,) = model.model.ttft.reports(), model.model.tpot.reports()

    assert ttft.is_fitted
    assert {"overhead", "queue", "prefill", "attention", "load_cpu"} <= set(ttft.costs_ms)
    assert ttft.mape < 0.05
    assert tpot.is_fitted
    assert tpot.costs_ms["token"] == pytest.approx(30, rel=0.2)
    assert tpot.mape < 0.05
    assert tpot.credits == {}


def test_refused_request_teaches_nothing_at_either_server_and_a_response_its_length() -> None:
    model = predictor()
    untaught = model.model.work_tokens, model.model.lengths.mean("m")
    stage = Stage(PREFILL, "prefill", routed_to(endpoint("p"), n_tokens=900_000))
    placement = Placement("prefill-decode", "decode", (stage,))
    for decision in (
        routed_to(endpoint("a"), n_tokens=900_000),
        msgspec.structs.replace(routed_to(endpoint("a"), n_tokens=900_000), placement=placement),
    ):
        model.picked(RequestView("m", 0.0, n_tokens=900_000), decision)
        model.refused(decision)
        model.ended(decision, tpot_s=None)
    assert (model.model.work_tokens, model.model.lengths.mean("m")) == pytest.approx(untaught, abs=1e-6)
    assert not len(model.model.accounts)

    for _ in range(30):
        model.generated(decision, n_tokens=1000)
    assert model.model.lengths.mean("m") == pytest.approx(1000.0)
