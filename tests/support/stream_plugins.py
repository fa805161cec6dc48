"""Plugins that misbehave at some requests, for recorded streams of decisions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvatlas.scorers.core.base import Rng
from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.columns import FloatArray
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.ratings import Inputs, Ratings, Verdicts


class FaultyScorer:
    """A scorer whose scores are right, outside of [0, 1], not finite, too few, or missing, by the length of the prompt."""

    type = "faulty-scorer"

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:
        scores = (
            np.array([len(name) % 3 / 3 for name in candidates.names]) + candidates.in_flight_requests / 7
        )
        match request.n_tokens % 5:
            case 0:
                raise LookupError("no such zone")
            case 1:
                return Ratings(scores[1:])
            case 2:
                scores = np.where(scores > 1, np.nan, scores)
            case 3:
                scores = np.minimum(1.0, scores)
            case _:
                pass
        return Ratings(scores, Inputs(scores))


class FaultyFilter:
    """A filter that drops some endpoints, gives too few verdicts, one that is no text, or raises."""

    type = "faulty-filter"

    def judge(self, request: RequestView, candidates: Candidates, *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        keep = candidates.in_flight_tokens % 3 != 1
        reasons = [f"number {number}" for number in np.flatnonzero(~keep).tolist()]
        match request.n_tokens % 7:
            case 0:
                raise LookupError("no such zone")
            case 1:
                return Verdicts(keep[1:], lambda _: reasons)
            case 2:
                return Verdicts(keep.astype(np.float64), lambda _: reasons)  # pyright: ignore[reportArgumentType]
            case _:
                return Verdicts(keep, lambda _: reasons)


class FaultyPicker:
    """A picker that picks the last, nobody, a row twice, a row that is not there, or raises."""

    type = "faulty-picker"

    def pick(self, totals: FloatArray, *, rng: Rng) -> tuple[Sequence[int], bool]:
        match int(rng() * 5):
            case 0:
                raise LookupError("no such zone")
            case 1:
                return [], False
            case 2:
                return [0, 0], False
            case 3:
                return [len(totals)], True
            case _:
                return [len(totals) - 1], False
