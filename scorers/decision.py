"""The outcome of one pick, with its reasons."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from .model import Candidate, Rating


class ScoreTerm(msgspec.Struct, frozen=True, gc=False):
    """One scorer's part in one candidate's total: `product = weight * rating.score`."""

    name: str
    type: str
    weight: float
    rating: Rating

    @property
    def product(self) -> float:
        """What the term adds to the total."""
        return self.weight * self.rating.score


class ScoredCandidate(msgspec.Struct, frozen=True):
    """A candidate with its terms, in the profile's order."""

    candidate: Candidate
    terms: tuple[ScoreTerm, ...]
    total: float


@dataclass(frozen=True, slots=True)
class ScorerFault:
    """What was wrong with one scorer's ratings in one decision.

    Attributes:
        name: the scorer's name in the profile.
        reason: bounded word for counters: `raised`, `wrong_length`, `not_finite` or `out_of_range`.
        detail: the same for people, one line.
    """

    name: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Every candidate's score and the picked ones.

    Attributes:
        model: as asked for.
        n_tokens: prompt tokens, 0 without tokenization.
        scored: all candidates, in the fleet's order.
        picked: names, best first.
        tie: whether chance decided between equal totals.
        no_prefix_reason: why the request has no block keys, None when it has.
        faults: scorers whose ratings had to be repaired, in the profile's order.
    """

    model: str
    n_tokens: int
    scored: tuple[ScoredCandidate, ...]
    picked: tuple[str, ...]
    tie: bool
    no_prefix_reason: str | None = None
    faults: tuple[ScorerFault, ...] = ()
