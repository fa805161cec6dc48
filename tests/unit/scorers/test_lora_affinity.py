"""`lora-affinity-scorer`: active, free capacity, waiting, neither."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import Adapters, Rating, RequestView
from kvatlas.scorers.lora_affinity import LoraAffinityScorer
from support.candidates import endpoint, load
from support.rating import rated

REQUEST = RequestView(model="tuned", now=0.5)


def adapters(active: str, waiting: str, max_active: int) -> Adapters:
    return Adapters(frozenset(active.split()), frozenset(waiting.split()), max_active)


@pytest.mark.parametrize(
    ("told", "rating"),
    [
        pytest.param(adapters("tuned", "", 1), Rating(raw=1.0, score=1.0, age_s=0.5), id="active"),
        pytest.param(
            adapters("tuned a", "b", 2), Rating(raw=3.0, score=1.0, age_s=0.5), id="active_though_full"
        ),
        pytest.param(adapters("a", "", 2), Rating(raw=1.0, score=0.8, age_s=0.5), id="room_for_it"),
        pytest.param(adapters("", "tuned", 2), Rating(raw=1.0, score=0.8, age_s=0.5), id="waiting_with_room"),
        pytest.param(adapters("a", "tuned", 2), Rating(raw=2.0, score=0.6, age_s=0.5), id="waiting"),
        pytest.param(adapters("a", "b", 2), Rating(raw=2.0, score=0.0, age_s=0.5), id="full_of_others"),
        pytest.param(None, Rating(raw=None, score=0.0), id="engine_tells_nothing"),
    ],
)
def test_lora_scorer_rates_what_the_endpoint_has(told: Adapters | None, rating: Rating) -> None:
    assert rated(LoraAffinityScorer(), REQUEST, [endpoint(of=load(adapters=told))]) == [rating]


def test_lora_scorer_rates_zero_when_the_load_is_unknown() -> None:
    assert rated(LoraAffinityScorer(), REQUEST, [endpoint()]) == [Rating(raw=None, score=0.0)]
