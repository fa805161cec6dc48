"""`queue-scorer`: formula, equal queues, unknown queues."""

from __future__ import annotations

import pytest

from kvatlas.scorers.model import Candidate, Load, RequestView
from kvatlas.scorers.queue import QueueScorer

REQUEST = RequestView(model="m", now=10.0)


def candidates(*queues: int | None) -> list[Candidate]:
    """One candidate a queue length; None is a load nobody knows."""
    return [
        Candidate(
            name=f"e{number}",
            address=f"10.0.0.{number}:8000",
            load=None
            if waiting is None
            else Load(waiting=waiting, running=1, kv_utilization=0.5, updated_at=9.75),
        )
        for number, waiting in enumerate(queues)
    ]


@pytest.mark.parametrize(
    ("queues", "scores"),
    [
        pytest.param((0, 5, 10), (1.0, 0.5, 0.0), id="min_max"),
        pytest.param((100, 101), (1.0, 0.0), id="small_spread_swings_fully"),
        pytest.param((7, 7, 7), (1.0, 1.0, 1.0), id="all_equal"),
        pytest.param((3,), (1.0,), id="one_endpoint"),
        pytest.param((None, 4, 8), (0.0, 1.0, 0.0), id="unknown_is_worst_and_outside_min_and_max"),
        pytest.param((None, 4), (0.0, 1.0), id="one_known"),
        pytest.param((None, None), (0.0, 0.0), id="all_unknown"),
        pytest.param((), (), id="no_candidates"),
    ],
)
def test_queue_scorer_rates_by_place_between_shortest_and_longest(
    queues: tuple[int | None, ...], scores: tuple[float, ...]
) -> None:
    ratings = QueueScorer().rate(REQUEST, candidates(*queues))

    assert tuple(rating.score for rating in ratings) == scores
    assert [rating.raw for rating in ratings] == [None if queue is None else float(queue) for queue in queues]


def test_queue_scorer_tells_the_age_of_the_load() -> None:
    known, unknown = QueueScorer().rate(REQUEST, candidates(3, None))

    assert (known.age_s, unknown.age_s) == (0.25, None)
