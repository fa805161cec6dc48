"""What another weight would have changed: computed from a decision afterwards, when somebody asks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .decision import Decision, ScoredCandidate, ScoreTerm
from .max_score import MaxScorePicker

MAX_STEPS = 16
"""Doublings of the step past a tie; rounding of the totals is overcome after two or three."""


@dataclass(frozen=True, slots=True)
class WeightChange:
    """A weight with which another endpoint has the highest total.

    Attributes:
        scorer: name of the scorer in the profile.
        weight: its weight in the decision.
        new_weight: the nearest weight, 0 or more, that takes the highest total from the picked endpoint.
        picks: names of the endpoints that then have it.
    """

    scorer: str
    weight: float
    new_weight: float
    picks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tie:
    """Where a rival draws level: the weight of term number `term`, and how much it gains on the picked one a unit."""

    term: int
    weight: float
    slope: float
    distance: float


def smallest_change(decision: Decision) -> WeightChange | None:
    """The smallest change of one scorer's weight that takes the highest total from the picked endpoint.

    A total is linear in each weight, so every rival draws level at one weight of a scorer or never, and what comes first
    counts. The weight named lies past that point by as little as makes a difference to totals as the profile adds them.
    Where chance broke a tie, the smallest change is that little itself.

    Returns:
        None where no change of one weight does it: nobody was picked, nobody else was scored, the picker does not go by
        the highest total, or the picked endpoint is best by every term.
    Cost: O(candidates * scorers), sorted; meant for reading, not for every request.
    """
    if not decision.picked or decision.picker != MaxScorePicker.type:
        return None
    kept = [each for each in decision.scored if each.dropped is None]
    picked = decision.first
    for tie in sorted(_ties(kept, picked), key=lambda each: each.distance):
        change = _past(tie, kept, picked)
        if change is not None:
            return change
    return None


def leaders(decision: Decision, weights: Mapping[str, float]) -> tuple[str, ...] | None:
    """Names of the endpoints that would have had the highest total with other weights, in the fleet's order.

    Args:
        decision: as it was made.
        weights: by name of a scorer; those not named keep what they had.
    Returns:
        None where weights do not tell: nobody was picked, or the picker does not go by the highest total.
    Cost: O(candidates * scorers), as the profile adds them.
    """
    if not decision.picked or decision.picker != MaxScorePicker.type:
        return None
    totals = [0.0] * len(decision.totals)
    for name, _, before, ratings in decision.columns:
        weight = weights.get(name, before)
        totals = [total + weight * rating.score for total, rating in zip(totals, ratings, strict=True)]
    best = max(totals)
    return tuple(each.name for each, total in zip(decision.kept, totals, strict=True) if total == best)


def _ties(kept: Sequence[ScoredCandidate], picked: ScoredCandidate) -> Iterator[_Tie]:
    for number, term in enumerate(picked.terms):
        for rival in kept:
            slope = rival.terms[number].rating.score - term.rating.score
            if not slope:
                continue
            change = (picked.total - rival.total) / slope
            if term.weight + change >= 0:
                yield _Tie(number, term.weight + change, slope, abs(change))


def _past(tie: _Tie, kept: Sequence[ScoredCandidate], picked: ScoredCandidate) -> WeightChange | None:
    """The nearest weight past the tie at which the picked endpoint has lost; None below 0 and beyond all floats."""
    step = max(math.ulp(tie.weight), math.ulp(picked.total) / abs(tie.slope))
    for _ in range(MAX_STEPS):
        weight = max(0.0, tie.weight + math.copysign(step, tie.slope))
        if not math.isfinite(weight):
            return None
        totals = [_total(each.terms, tie.term, weight) for each in kept]
        best = max(totals)
        if _total(picked.terms, tie.term, weight) < best:
            names = (each.candidate.name for each, total in zip(kept, totals, strict=True) if total == best)
            term = picked.terms[tie.term]
            return WeightChange(term.name, term.weight, weight, tuple(names))
        step *= 2
    return None


def _total(terms: Sequence[ScoreTerm], changed: int, weight: float) -> float:
    """The total as the profile adds it, with another weight for one term."""
    total = 0.0
    for number, term in enumerate(terms):
        total += (weight if number == changed else term.weight) * term.rating.score
    return total
