"""`no-hit-lru-scorer`: ranks of cold requests, requests with a hit, memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.match import PrefixMatch
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.no_hit_lru import NoHitLruScorer
from support.candidates import endpoint, held, no_chance
from support.rating import decide, rated

REQUEST = RequestView(model="m", now=0.0)


def fleet(names: str) -> list[Candidate]:
    return [endpoint(name) for name in names]


def scores(scorer: NoHitLruScorer, candidates: Sequence[Candidate]) -> list[float]:
    return [rating.score for rating in rated(scorer, REQUEST, candidates)]


def route(scorer: NoHitLruScorer, candidates: Sequence[Candidate]) -> str:
    """Decide with this scorer only, call it with the decision, and return the picked name."""
    profile = Profile([("scorer", scorer, 1.0)], MaxScorePicker())
    decision = decide(profile, REQUEST, candidates, rng=no_chance)
    assert profile.picked(REQUEST, decision) == ()
    return decision.picked[0]


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        pytest.param("", [1.0, 0.5, 0.0], id="never_used_rank_by_name"),
        pytest.param("a", [0.0, 1.0, 0.5], id="used_comes_last"),
        pytest.param("ab", [0.5, 0.0, 1.0], id="longest_ago_before_later"),
        pytest.param("abca", [0.0, 1.0, 0.5], id="all_used"),
    ],
)
def test_cold_request_ranks_by_last_use(used: str, expected: list[float]) -> None:
    scorer = NoHitLruScorer(1024)
    for name in used:
        assert route(scorer, fleet(name)) == name

    assert scores(scorer, fleet("abc")) == expected


def test_one_endpoint_scores_one() -> None:
    scorer = NoHitLruScorer(1024)
    assert scores(scorer, fleet("a")) == [1.0]
    route(scorer, fleet("a"))
    assert scores(scorer, fleet("a")) == [1.0]


@pytest.mark.parametrize("prefix", [held(gpu=1), held(cpu=1), held(storage=1)], ids=["gpu", "cpu", "storage"])
def test_request_with_any_hit_is_neutral_and_not_remembered(prefix: PrefixMatch) -> None:
    scorer = NoHitLruScorer(1024)
    warm = [endpoint("a"), endpoint("b", prefix=prefix)]

    assert scores(scorer, warm) == [0.5, 0.5]
    route(scorer, warm)
    assert scores(scorer, fleet("ab")) == [1.0, 0.0]


@given(n=st.integers(1, 12))
def test_cold_requests_visit_the_whole_fleet_in_turn(n: int) -> None:
    scorer = NoHitLruScorer(1024)
    candidates = fleet("abcdefghijkl"[:n])

    rounds = [[route(scorer, candidates) for _ in range(n)] for _ in range(2)]

    assert rounds[0] == rounds[1] == [candidate.name for candidate in candidates]


def test_endpoints_that_are_not_candidates_have_no_rank() -> None:
    scorer = NoHitLruScorer(1024)
    for name in "xyza":
        route(scorer, fleet(name))

    assert scores(scorer, fleet("ab")) == [0.0, 1.0]


def test_memory_is_bounded() -> None:
    scorer = NoHitLruScorer(2)
    for name in "abc":
        route(scorer, fleet(name))

    assert scores(scorer, fleet("abc")) == [1.0, 0.5, 0.0]
