"""`lora-affinity-scorer`: loaded, probably loaded, in memory, waiting, none of these."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import Adapters, Rating, RequestView
from kvatlas.scorers.lora_affinity import LoraAffinityScorer
from support.candidates import endpoint, load
from support.rating import rated

REQUEST = RequestView(model="tuned", now=0.5)
TUNED, OTHER = frozenset({"tuned"}), frozenset({"other"})


@pytest.mark.parametrize(
    ("told", "rating"),
    [
        pytest.param(Adapters(TUNED), Rating(raw=1.0, score=1.0, age_s=0.5), id="active"),
        pytest.param(Adapters(TUNED, TUNED), Rating(raw=1.0, score=1.0, age_s=0.5), id="in_both_lists"),
        pytest.param(Adapters(OTHER, on_gpu=TUNED), Rating(raw=1.0, score=1.0, age_s=0.5), id="idle_on_gpu"),
        pytest.param(Adapters(OTHER, recent=TUNED), Rating(raw=1.0, score=0.8, age_s=0.5), id="idle_lately"),
        pytest.param(Adapters(in_memory=TUNED), Rating(raw=0.0, score=0.7, age_s=0.5), id="in_host_memory"),
        pytest.param(Adapters(OTHER, TUNED), Rating(raw=2.0, score=0.6, age_s=0.5), id="waiting"),
        pytest.param(Adapters(OTHER), Rating(raw=1.0, score=0.0, age_s=0.5), id="others_alone"),
        pytest.param(Adapters(), Rating(raw=0.0, score=0.0, age_s=0.5), id="room_is_no_reason"),
        pytest.param(None, Rating(raw=None, score=0.0), id="engine_tells_nothing"),
    ],
)
def test_lora_scorer_rates_where_the_adapter_is(told: Adapters | None, rating: Rating) -> None:
    assert rated(LoraAffinityScorer(), REQUEST, [endpoint(of=load(adapters=told))]) == [rating]


def test_lora_scorer_rates_zero_when_the_load_is_unknown() -> None:
    assert rated(LoraAffinityScorer(), REQUEST, [endpoint()]) == [Rating(raw=None, score=0.0)]
