"""Column of ratings: reads like a list of ratings."""

from __future__ import annotations

import pytest

from kvatlas.scorers.core.model import Rating
from kvatlas.scorers.core.rating_column import RatingColumn
from support.candidates import endpoint, load

PLAIN = [Rating(raw=3.0, score=0.5), Rating(raw=None, score=0.0), Rating(raw=0.0, score=1.0)]
AGED = [Rating(raw=3.0, score=0.5, age_s=2.0), PLAIN[1], Rating(raw=0.0, score=1.0, age_s=2.0)]
CANDIDATES = [endpoint("a", of=load()), endpoint("b"), endpoint("c", of=load())]


@pytest.mark.parametrize(
    ("column", "ratings"),
    [
        pytest.param(RatingColumn([0.5, 0.0, 1.0], [3, None, 0]), PLAIN, id="without_age"),
        pytest.param(
            RatingColumn([0.5, 0.0, 1.0], [3, None, 0], loaded=CANDIDATES, now=2.0), AGED, id="age_of_loads"
        ),
        pytest.param(RatingColumn([], []), [], id="none"),
    ],
)
def test_column_reads_as_its_ratings(column: RatingColumn, ratings: list[Rating]) -> None:
    assert (len(column), list(column)) == (len(ratings), ratings)
    assert column[1:] == ratings[1:]
    assert column[-1:] == ratings[-1:]
    assert [rating.score for rating in column] == list(column.scores)


def test_column_raises_when_inputs_and_scores_differ_in_number() -> None:
    with pytest.raises(ValueError, match="1 inputs for 2 scores"):
        RatingColumn([0.0, 1.0], [None])


def test_column_has_no_rating_beyond_its_end() -> None:
    with pytest.raises(IndexError):
        RatingColumn([1.0], [None])[1]
