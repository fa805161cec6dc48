"""Decisions made by a real profile from a table of scores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvatlas.scorers.core.base import Picker
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import Candidate, RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.ratings import Inputs, Ratings
from support.candidates import endpoint, no_chance
from support.rating import decide

Rows = Sequence[Sequence[float]]
"""Scores by endpoint, then by scorer; endpoints are called e0, e1, ..., scorers s0, s1, ..."""


class Column:
    """A scorer that rates endpoint i with `scores[i]`."""

    type = "column"

    def __init__(self, scores: Sequence[float]) -> None:
        self._scores = scores

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        scores = np.array([self._scores[int(name[1:])] for name in candidates.names], np.float64)
        return Ratings(scores, Inputs(100 * scores))


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
    return decide(Profile(scorers, picker or MaxScorePicker()), view, fleet, rng=no_chance)
