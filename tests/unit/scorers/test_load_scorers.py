"""Scorers of load except queue and utilization: absolute queue, requests and tokens in flight."""

from __future__ import annotations

import pytest

from kvatlas.scorers.active_request import ActiveRequestScorer
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.model import Candidate, Load, Rating, RequestView
from kvatlas.scorers.load_aware import LoadAwareScorer
from kvatlas.scorers.token_load import TokenLoadScorer
from support.built import built
from support.candidates import endpoint, held, load
from support.rating import rated

REQUEST = RequestView(model="m", now=2.0, n_tokens=160)


@pytest.mark.parametrize(
    ("of", "rating"),
    [
        pytest.param(load(waiting=0), Rating(raw=0.0, score=0.5, age_s=2.0), id="empty_queue"),
        pytest.param(load(waiting=64), Rating(raw=64.0, score=0.25, age_s=2.0), id="half_full"),
        pytest.param(load(waiting=128), Rating(raw=128.0, score=0.0, age_s=2.0), id="full"),
        pytest.param(load(waiting=999), Rating(raw=999.0, score=0.0, age_s=2.0), id="beyond_full"),
        pytest.param(None, Rating(raw=None, score=0.0), id="unknown"),
    ],
)
def test_load_aware_scorer_rates_the_queue_absolutely(of: Load | None, rating: Rating) -> None:
    assert (
        rated(LoadAwareScorer(128), REQUEST, [endpoint(of=of), endpoint("busy", of=load(waiting=5))])[0]
        == rating
    )


@pytest.mark.parametrize("threshold", [0, -5])
def test_load_aware_scorer_takes_its_default_for_a_threshold_that_is_none(threshold: int) -> None:
    scorer = built(builtin_registry().scorers, "load-aware-scorer", {"threshold": threshold})

    assert rated(scorer, REQUEST, [endpoint(of=load(waiting=64))])[0].score == 0.25


@pytest.mark.parametrize(
    ("requests", "idle_threshold", "max_busy_score", "scores"),
    [
        pytest.param((0, 5, 10), 0, 1.0, (1.0, 0.5, 0.0), id="defaults"),
        pytest.param((2, 4), 0, 1.0, (0.5, 0.0), id="lightest_is_not_subtracted"),
        pytest.param((4, 4), 0, 1.0, (0.0, 0.0), id="equal_and_busy"),
        pytest.param((0, 0), 0, 1.0, (1.0, 1.0), id="all_idle"),
        pytest.param((1, 2, 4), 1, 0.5, (1.0, 0.25, 0.0), id="gap_between_idle_and_busy"),
        pytest.param((3, 9), 0, 0.0, (0.0, 0.0), id="busy_is_busy"),
    ],
)
def test_active_request_scorer_rates_requests_in_flight(
    requests: tuple[int, ...], idle_threshold: int, max_busy_score: float, scores: tuple[float, ...]
) -> None:
    scorer = ActiveRequestScorer(idle_threshold=idle_threshold, max_busy_score=max_busy_score)

    ratings = rated(scorer, REQUEST, [endpoint(f"e{n}", in_flight=(n, 0)) for n in requests])

    assert [(rating.raw, rating.score) for rating in ratings] == [
        (float(n), score) for n, score in zip(requests, scores, strict=True)
    ]


@pytest.mark.parametrize(
    ("candidate", "tokens", "score"),
    [
        pytest.param(endpoint(in_flight=(1, 40)), 200, 0.5, id="nothing_cached"),
        pytest.param(endpoint(in_flight=(1, 40), prefix=held(gpu=5)), 120, 0.7, id="half_cached"),
        pytest.param(endpoint(prefix=held(gpu=10)), 0, 1.0, id="idle_and_cached"),
        pytest.param(endpoint(in_flight=(2, 400), prefix=held(gpu=10)), 400, 0.0, id="full"),
        pytest.param(endpoint(in_flight=(2, 4000)), 4160, 0.0, id="beyond_full"),
        pytest.param(endpoint(prefix=held(gpu=10), credit=0.5), 80, 0.8, id="half_trusted"),
        pytest.param(endpoint(prefix=held(cpu=10)), 0, 1.0, id="cached_in_cpu_memory"),
    ],
)
def test_token_load_scorer_rates_tokens_ahead_and_of_the_request(
    candidate: Candidate, tokens: int, score: float
) -> None:
    assert list(rated(TokenLoadScorer(400), REQUEST, [candidate])) == [Rating(raw=float(tokens), score=score)]


def test_token_load_is_what_is_in_flight_when_the_prompt_was_not_tokenized() -> None:
    (rating,) = rated(TokenLoadScorer(400), RequestView(model="m", now=0.0), [endpoint(in_flight=(1, 100))])

    assert rating == Rating(raw=100.0, score=0.75)
