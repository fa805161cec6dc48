"""`prefix-cache-scorer`: share of the prompt, credit, prompts without keys, tiers nobody has."""

from __future__ import annotations

import pytest

from kvatlas.scorers.model import Candidate, Rating, RequestView
from kvatlas.scorers.prefix_cache import PrefixCacheScorer
from support.matches import prefix_match

REQUEST = RequestView(model="m", now=0.0, n_tokens=160)


def candidate(*, gpu: int = 0, cpu: int = 0, n_blocks: int = 10, credit: float = 1.0) -> Candidate:
    match = prefix_match({"gpu": gpu, "cpu": cpu}, n_blocks=n_blocks)
    return Candidate(name="e", address="10.0.0.1:8000", prefix=match, credit=credit)


NO_KEYS = Candidate(name="e", address="10.0.0.1:8000")


@pytest.mark.parametrize(
    ("tier", "endpoint", "rating"),
    [
        pytest.param("gpu", candidate(gpu=5, cpu=9), Rating(raw=5.0, score=0.5), id="gpu_share"),
        pytest.param("cpu", candidate(gpu=5, cpu=9), Rating(raw=9.0, score=0.9), id="cpu_share"),
        pytest.param("gpu", candidate(gpu=10), Rating(raw=10.0, score=1.0), id="whole_prompt"),
        pytest.param("gpu", candidate(), Rating(raw=0.0, score=0.0), id="nothing_held"),
        pytest.param(
            "gpu", candidate(gpu=5, credit=0.5), Rating(raw=5.0, score=0.25), id="credit_multiplies"
        ),
        pytest.param("gpu", candidate(gpu=5, credit=0.0), Rating(raw=5.0, score=0.0), id="no_credit"),
        pytest.param(
            "gpu", candidate(gpu=12), Rating(raw=12.0, score=1.0), id="more_than_the_prompt_is_clamped"
        ),
        pytest.param(
            "gpu", candidate(gpu=5, credit=-1.0), Rating(raw=5.0, score=0.0), id="negative_credit_is_clamped"
        ),
        pytest.param("gpu", candidate(n_blocks=0), Rating(raw=0.0, score=0.0), id="prompt_below_one_block"),
        pytest.param("gpu", NO_KEYS, Rating(raw=None, score=0.0), id="request_without_keys"),
        pytest.param("disk", candidate(gpu=5), Rating(raw=0.0, score=0.0), id="tier_not_in_the_match"),
        pytest.param(None, candidate(gpu=5, cpu=9), Rating(raw=None, score=0.0), id="fleet_without_the_tier"),
    ],
)
def test_prefix_scorer_rates_the_share_of_the_prompt(
    tier: str | None, endpoint: Candidate, rating: Rating
) -> None:
    assert PrefixCacheScorer(tier).rate(REQUEST, [endpoint]) == [rating]
