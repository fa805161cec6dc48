"""`mm-embeddings-cache-scorer`: media that endpoints were sent before."""

from __future__ import annotations

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.params import BuildContext
from kvatlas.scorers.core.prefix_source import MediaProducer
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.errors import ParametersError
from kvatlas.scorers.mm_embeddings_cache import SPARE_ENDPOINTS, MediaCacheScorer
from support.built import built
from support.candidates import endpoint, no_chance
from support.rating import decide, rated


def asking(*media: int) -> RequestView:
    return RequestView(model="m", now=0.0, media=media)


def send(scorer: MediaCacheScorer, to: str, *media: int) -> None:
    profile = Profile([("scorer", scorer, 1.0)], MaxScorePicker())
    decision = decide(profile, asking(*media), [endpoint(to)], rng=no_chance)
    assert profile.picked(asking(*media), decision) == ()


def scores(scorer: MediaCacheScorer, *media: int) -> list[float]:
    return [rating.score for rating in rated(scorer, asking(*media), [endpoint("a"), endpoint("b")])]


def test_score_is_the_share_of_the_media_that_an_endpoint_was_sent() -> None:
    scorer = MediaCacheScorer(10)
    send(scorer, "a", 1, 2)
    send(scorer, "b", 3)

    assert scores(scorer, 1, 2, 3, 4) == [0.5, 0.25]
    assert scores(scorer, 5) == [0.0, 0.0]
    assert scores(scorer) == [0.0, 0.0]


def test_oldest_media_are_forgotten_and_those_sent_again_are_the_newest() -> None:
    scorer = MediaCacheScorer(2)
    for item in (1, 2, 1, 3):
        send(scorer, "a", item)

    assert [scores(scorer, item)[0] for item in (1, 2, 3)] == [1.0, 0.0, 1.0]


def test_request_without_media_is_not_remembered() -> None:
    scorer = MediaCacheScorer(2)
    send(scorer, "a")
    assert scores(scorer, 1) == [0.0, 0.0]


@pytest.mark.parametrize(("n_later", "score"), [(SPARE_ENDPOINTS + 1, 1.0), (SPARE_ENDPOINTS + 2, 0.0)])
def test_endpoints_of_before_are_forgotten_when_there_are_many_more_than_in_the_fleet(
    n_later: int, score: float
) -> None:
    scorer = MediaCacheScorer(2)
    send(scorer, "a", 1)
    for number in range(n_later - 1):
        send(scorer, f"pod-{number}", 2)
    send(scorer, "b", 1)

    assert scores(scorer, 1) == [score, 1.0]


@pytest.mark.parametrize(
    ("mebibytes", "n_items"), [(None, 2048), (0, 2048), (-1, 2048), (4, 2), (1, 1), (4096, 2048)]
)
def test_items_of_a_producer_take_two_mebibytes_each(mebibytes: int | None, n_items: int) -> None:
    parameters = {} if mebibytes is None else {"cacheSizeInMBPerServer": mebibytes}
    made = built(builtin_registry().producers, "mm-embeddings-cache-producer", parameters, BuildContext())
    assert made == MediaProducer(n_items)


def test_producer_that_is_not_there_is_refused() -> None:
    context = BuildContext(media={"mine": 2})
    with pytest.raises(ParametersError, match="found 'other'"):
        built(builtin_registry().scorers, MediaCacheScorer.type, {"producerName": "other"}, context)


def test_named_producer_bounds_the_memory() -> None:
    context = BuildContext(media={"mine": 1})
    scorer = built(builtin_registry().scorers, MediaCacheScorer.type, {"producerName": "mine"}, context)
    assert isinstance(scorer, MediaCacheScorer)
    send(scorer, "a", 1, 2)

    assert scores(scorer, 1, 2) == [0.5, 0.0]
