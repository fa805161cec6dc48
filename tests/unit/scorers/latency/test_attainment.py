"""`slo-attainment-scorer`: chances by ratio of prediction and objective, and what is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.latency.attainment import UNKNOWN, SloAttainmentParams, SloAttainmentScorer
from support.candidates import endpoint
from support.predicted import Times, predicted

FLEET = [endpoint("a"), endpoint("b"), endpoint("c")]


def chances(times: Times, **slo: str) -> list[float]:
    headers = {f"x-slo-{name}-ms": value for name, value in slo.items()}
    scorer = SloAttainmentScorer(SloAttainmentParams())
    table = predicted(FLEET[: len(times)], times)
    found: list[float] = scorer.rate(RequestView("m", 0.0, headers=headers), table).scores.tolist()
    return found


def test_time_at_its_limit_has_even_chances_and_ease_is_nearly_certain() -> None:
    easy, even, hopeless = chances([(100, 10), (500, 10), (4000, 10)], ttft="500")

    assert easy > 0.99
    assert even == pytest.approx(0.5)
    assert hopeless < 0.01


def test_both_objectives_must_be_met() -> None:
    both, slow, late = chances([(100, 10), (100, 60), (900, 10)], ttft="500", tpot="30")

    assert both > 0.99
    assert slow < 0.01
    assert late < 0.2


def test_request_without_objectives_makes_no_difference() -> None:
    assert chances([(100, 10), (900, 90), None]) == [1.0, 1.0, 1.0]


def test_nothing_predicted_makes_no_difference() -> None:
    request = RequestView("m", 0.0, headers={"x-slo-ttft-ms": "5"})
    scores = SloAttainmentScorer(SloAttainmentParams()).rate(request, Candidates.of(FLEET)).scores

    assert scores.tolist() == [1.0, 1.0, 1.0]


def test_endpoint_without_a_prediction_has_even_chances() -> None:
    assert chances([(100, 10), None], ttft="500")[1] == UNKNOWN
    nan = float("nan")
    assert chances([(100, nan), (100, nan)], tpot="500") == [1.0, 1.0], (
        "nothing is known of output tokens yet"
    )


POSITIVE = st.floats(1e-6, 1e9)


@given(times=st.lists(st.tuples(POSITIVE, POSITIVE), min_size=3, max_size=3), ttft=POSITIVE, tpot=POSITIVE)
def test_shorter_predictions_never_score_less(
    times: list[tuple[float, float]], ttft: float, tpot: float
) -> None:
    found = chances(times, ttft=f"{ttft!r}", tpot=f"{tpot!r}")

    assert all(0.0 <= each <= 1.0 for each in found)
    for one, its in zip(times, found, strict=True):
        for other, others in zip(times, found, strict=True):
            if one[0] <= other[0] and one[1] <= other[1]:
                assert its >= others - 1e-12
