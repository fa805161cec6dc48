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


class Dropped(msgspec.Struct, frozen=True, gc=False):
    """The filter that dropped a candidate, by its name in the profile, and why, in words."""

    by: str
    reason: str


class ScoredCandidate(msgspec.Struct, frozen=True):
    """A candidate with its terms, in the profile's order; a dropped one was not scored and has none."""

    candidate: Candidate
    terms: tuple[ScoreTerm, ...]
    total: float
    dropped: Dropped | None = None


@dataclass(frozen=True, slots=True)
class PluginFault:
    """What was wrong with one plugin's answer in one decision.

    Attributes:
        name: the plugin's name in the profile.
        reason: bounded word for counters: `raised`, `wrong_length`, `wrong_answer`, `not_finite` or `out_of_range`.
        detail: the same for people, one line.
    """

    name: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose request it was, as its headers tell.

    Attributes:
        request_id: `x-request-id`.
        traceparent: W3C trace context, empty without one.
        objective: name of its objective, empty without one.
        priority: of the objective.
        fairness_id: whom it counts for.
    """

    request_id: str
    traceparent: str
    objective: str
    priority: int
    fairness_id: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Every candidate's score and the picked ones.

    Attributes:
        model: as asked for.
        n_tokens: prompt tokens, 0 without tokenization.
        scored: all candidates, in the fleet's order.
        picked: names, best first; empty when filters dropped every candidate.
        tie: whether chance decided the first place.
        no_prefix_reason: why the request has no token ids, None when it has.
        cut_reason: why its token ids end before the prompt does, None when they are all.
        faults: plugins whose answers had to be repaired, in the profile's order.
        origin: whose request it was, None when nothing is routed by the decision.
    """

    model: str
    n_tokens: int
    scored: tuple[ScoredCandidate, ...]
    picked: tuple[str, ...]
    tie: bool
    no_prefix_reason: str | None = None
    cut_reason: str | None = None
    faults: tuple[PluginFault, ...] = ()
    origin: Origin | None = None

    @property
    def first(self) -> ScoredCandidate:
        """The best of the picked; only where `picked` is not empty."""
        return next(each for each in self.scored if each.candidate.name == self.picked[0])
