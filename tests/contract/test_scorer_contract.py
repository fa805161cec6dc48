"""What every scorer keeps, whatever the request and the fleet."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.match import PrefixMatch
from kvatlas.scorers.base import Scorer
from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.model import Candidate, Load, RequestView
from support.matches import prefix_match

PARAMETERS: dict[str, list[dict[str, object]]] = {
    "prefix-cache-scorer": [{"tier": "gpu"}, {"tier": "cpu"}, {"tier": "nobody has it"}]
}


def every_scorer() -> list[Scorer]:
    """Each registered scorer, with each of its sample parameters."""
    registry = builtin_registry()
    return [
        registry.scorer(plugin_type, parameters)
        for plugin_type in registry.scorer_types
        for parameters in PARAMETERS.get(plugin_type, [{}])
    ]


LOADS = st.builds(
    Load,
    waiting=st.integers(0, 10**6),
    running=st.integers(0, 10**6),
    kv_utilization=st.floats(0, 1),
    updated_at=st.floats(0, 1000),
)


@st.composite
def prefixes(draw: st.DrawFn) -> PrefixMatch:
    n_blocks = draw(st.integers(0, 2000))
    tier_blocks = {tier: draw(st.integers(0, n_blocks)) for tier in ("gpu", "cpu")}
    return prefix_match(tier_blocks, n_blocks=n_blocks, block_size=draw(st.sampled_from((1, 16, 64))))


@st.composite
def fleets(draw: st.DrawFn) -> list[Candidate]:
    return [
        Candidate(
            name=f"e{number}",
            address=f"10.0.0.{number}:8000",
            load=draw(st.none() | LOADS),
            prefix=draw(st.none() | prefixes()),
            credit=draw(st.floats(0, 1)),
        )
        for number in range(draw(st.integers(0, 8)))
    ]


REQUESTS = st.builds(RequestView, model=st.just("m"), now=st.floats(0, 1000), n_tokens=st.integers(0, 10**6))


@pytest.mark.parametrize("scorer", every_scorer(), ids=lambda scorer: scorer.type)
class TestScorerContract:
    @given(request=REQUESTS, fleet=fleets())
    def test_one_finite_score_in_zero_to_one_for_each_candidate(
        self, scorer: Scorer, request: RequestView, fleet: list[Candidate]
    ) -> None:
        ratings = scorer.rate(request, fleet)

        assert len(ratings) == len(fleet)
        for rating in ratings:
            assert 0.0 <= rating.score <= 1.0
            assert rating.raw is None or math.isfinite(rating.raw)
            assert rating.age_s is None or rating.age_s >= 0.0

    @given(request=REQUESTS, fleet=fleets(), data=st.data())
    def test_permuting_candidates_permutes_ratings(
        self, scorer: Scorer, request: RequestView, fleet: list[Candidate], data: st.DataObject
    ) -> None:
        order = data.draw(st.permutations(range(len(fleet))))

        ratings = scorer.rate(request, fleet)
        permuted = scorer.rate(request, [fleet[index] for index in order])

        assert list(permuted) == [ratings[index] for index in order]

    @given(request=REQUESTS, fleet=fleets())
    def test_equal_input_gives_equal_ratings(
        self, scorer: Scorer, request: RequestView, fleet: list[Candidate]
    ) -> None:
        assert list(scorer.rate(request, fleet)) == list(scorer.rate(request, tuple(fleet)))

    @given(request=REQUESTS, fleet=fleets())
    def test_nothing_known_rates_zero(
        self, scorer: Scorer, request: RequestView, fleet: list[Candidate]
    ) -> None:
        unseen = Candidate(name="unseen", address="10.0.1.0:8000")

        rating = scorer.rate(request, [*fleet, unseen])[-1]

        assert (rating.raw, rating.score) == (None, 0.0)


def test_scorer_types_are_the_registered_ones() -> None:
    assert {scorer.type for scorer in every_scorer()} == set(builtin_registry().scorer_types)
