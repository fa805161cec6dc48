"""`queue-scorer` and `running-requests-size-scorer`: position between lowest and highest load, unknown loads."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import Candidate, Load, RequestView
from kvatlas.scorers.queue import QueueScorer
from kvatlas.scorers.running_requests import RunningRequestsScorer
from support.rating import rated

REQUEST = RequestView(model="m", now=10.0)
SCORERS = [
    pytest.param(QueueScorer(), "waiting", id="queue"),
    pytest.param(RunningRequestsScorer(), "running", id="running"),
]


def candidates(field: str, *counts: int | None) -> list[Candidate]:
    """Return one candidate per count, in that field of its load; None is an unknown load."""
    return [
        Candidate(
            name=f"e{number}",
            address=f"10.0.0.{number}:8000",
            load=None
            if count is None
            else Load(
                waiting=count if field == "waiting" else 1,
                running=count if field == "running" else 1,
                kv_utilization=0.5,
                updated_at=9.75,
            ),
        )
        for number, count in enumerate(counts)
    ]


@pytest.mark.parametrize(("scorer", "field"), SCORERS)
@pytest.mark.parametrize(
    ("counts", "scores"),
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
def test_scorer_rates_by_position_between_lowest_and_highest_load(
    scorer: QueueScorer | RunningRequestsScorer,
    field: str,
    counts: tuple[int | None, ...],
    scores: tuple[float, ...],
) -> None:
    ratings = rated(scorer, REQUEST, candidates(field, *counts))

    assert tuple(rating.score for rating in ratings) == scores
    assert [rating.raw for rating in ratings] == [None if count is None else float(count) for count in counts]


@pytest.mark.parametrize(("scorer", "field"), SCORERS)
def test_ratings_carry_the_age_of_the_load(scorer: QueueScorer | RunningRequestsScorer, field: str) -> None:
    known, unknown = rated(scorer, REQUEST, candidates(field, 3, None))

    assert (known.age_s, unknown.age_s) == (0.25, None)
