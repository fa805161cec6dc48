"""`kv-cache-utilization-scorer`: absolute formula, bounds, unknown loads."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import Candidate, Load, Rating, RequestView
from kvatlas.scorers.kv_cache_utilization import KVCacheUtilizationScorer
from support.rating import rated

REQUEST = RequestView(model="m", now=10.0)


def candidate(utilization: float | None) -> Candidate:
    load = (
        None
        if utilization is None
        else Load(waiting=0, running=0, kv_utilization=utilization, updated_at=9.5)
    )
    return Candidate(name="e", address="10.0.0.1:8000", load=load)


@pytest.mark.parametrize(
    ("utilization", "rating"),
    [
        pytest.param(0.0, Rating(raw=0.0, score=1.0, age_s=0.5), id="empty"),
        pytest.param(0.25, Rating(raw=0.25, score=0.75, age_s=0.5), id="quarter_used"),
        pytest.param(1.0, Rating(raw=1.0, score=0.0, age_s=0.5), id="full"),
        pytest.param(1.01, Rating(raw=1.01, score=0.0, age_s=0.5), id="above_one_is_clamped"),
        pytest.param(None, Rating(raw=None, score=0.0), id="unknown"),
    ],
)
def test_utilization_scorer_rates_the_free_part(utilization: float | None, rating: Rating) -> None:
    assert list(rated(KVCacheUtilizationScorer(), REQUEST, [candidate(utilization)])) == [rating]


def test_utilization_scorer_is_absolute() -> None:
    alone = rated(KVCacheUtilizationScorer(), REQUEST, [candidate(0.5)])
    beside_others = rated(
        KVCacheUtilizationScorer(), REQUEST, [candidate(0.5), candidate(0.1), candidate(None)]
    )

    assert beside_others[0] == alone[0]


def test_age_is_never_negative_when_the_scrape_is_newer_than_the_request() -> None:
    (rating,) = rated(KVCacheUtilizationScorer(), RequestView(model="m", now=9.0), [candidate(0.5)])

    assert rating.age_s == 0.0
