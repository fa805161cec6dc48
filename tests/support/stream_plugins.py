"""Plugins that misbehave at some requests, for recorded streams of decisions."""

from __future__ import annotations

from collections.abc import Sequence

from kvatlas.scorers.core.base import Rng, Verdicts
from kvatlas.scorers.core.model import Candidate, Rating, Ratings, RequestView


class FaultyScorer:
    """A scorer whose scores are right, outside of [0, 1], not finite, too few, or missing, by the length of the prompt."""

    type = "faulty-scorer"

    def rate(self, request: RequestView, candidates: Sequence[Candidate]) -> Ratings:
        scores = [len(each.name) % 3 / 3 + each.in_flight.requests / 7 for each in candidates]
        match request.n_tokens % 5:
            case 0:
                raise LookupError("no such zone")
            case 1:
                return [Rating(raw=None, score=score) for score in scores[1:]]
            case 2:
                scores = [float("nan") if score > 1 else score for score in scores]
            case 3:
                scores = [min(1.0, score) for score in scores]
            case _:
                pass
        return [Rating(raw=score, score=score) for score in scores]


class FaultyFilter:
    """A filter that drops some endpoints, gives too few verdicts, one that is no text, or raises."""

    type = "faulty-filter"

    def judge(self, request: RequestView, candidates: Sequence[Candidate], *, rng: Rng) -> Verdicts:  # noqa: ARG002 (Filter)
        verdicts = [
            f"number {number}" if each.in_flight.tokens % 3 == 1 else None
            for number, each in enumerate(candidates)
        ]
        match request.n_tokens % 7:
            case 0:
                raise LookupError("no such zone")
            case 1:
                return verdicts[1:]
            case 2:
                return [*verdicts[1:], 3]  # type: ignore[list-item]  # pyright: ignore[reportReturnType]
            case _:
                return verdicts


class FaultyPicker:
    """A picker that picks the last, nobody, a row twice, a row that is not there, or raises."""

    type = "faulty-picker"

    def pick(self, totals: Sequence[float], *, rng: Rng) -> tuple[list[int], bool]:
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
