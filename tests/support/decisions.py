"""Decisions made by a real profile from a table of scores."""

from __future__ import annotations

from collections.abc import Sequence

from kvatlas.scorers.core.base import Picker
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, Rating, Ratings, RequestView
from kvatlas.scorers.core.profile import Profile
from support.candidates import endpoint, no_chance

Rows = Sequence[Sequence[float]]
"""Scores by endpoint, then by scorer; endpoints are called e0, e1, ..., scorers s0, s1, ..."""


class Column:
    """A scorer that rates endpoint i with `scores[i]`."""

    type = "column"

    def __init__(self, scores: Sequence[float]) -> None:
        self._scores = scores

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:  # noqa: ARG002 (Scorer)
        return [
            Rating(raw=100 * score, score=score)
            for score in (self._scores[int(each.name[1:])] for each in candidates)
        ]


def decided(
    rows: Rows,
    weights: Sequence[float],
    *,
    picker: Picker | None = None,
    candidates: Sequence[Candidate] | None = None,
) -> Decision:
    """Return the decision between endpoints with these scores; `no_chance` breaks ties."""
    scorers = [
        (f"s{number}", Column([row[number] for row in rows]), weight) for number, weight in enumerate(weights)
    ]
    fleet = candidates or [endpoint(f"e{number}") for number in range(len(rows))]
    view = RequestView(model="m", now=0.0)
    return Profile(scorers, picker or MaxScorePicker()).decide(view, fleet, rng=no_chance)
