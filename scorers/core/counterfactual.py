"""Effect of other weights on a decision, computed afterwards on demand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .decision import Decision, ScoredCandidate, ScoreTerm
from .max_score import MaxScorePicker

MAX_STEPS = 16
"""Most doublings of the step past a tie; two or three exceed the rounding of the totals."""


@dataclass(frozen=True, slots=True)
class WeightChange:
    """A change of one weight that gives another endpoint the highest total.

    Attributes:
        scorer: name of the scorer in the profile.
        weight: its weight in the decision.
        new_weight: the nearest weight, 0 or more, with which the picked endpoint has no longer the highest total.
        picks: names of the endpoints that then have the highest total.
    """

    scorer: str
    weight: float
    new_weight: float
    picks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tie:
    """Weight of term number `term` at which a rival has the total of the picked endpoint, and its gain per unit."""

    term: int
    weight: float
    slope: float
    distance: float


def smallest_change(decision: Decision) -> WeightChange | None:
    """Return the smallest change of one scorer's weight that takes the highest total from the picked endpoint.

    A total is linear in each weight, so a rival ties at one weight of a scorer or never. The nearest such tie counts.
    The returned weight is the smallest step past that tie which changes the totals in floating point.
    If chance broke a tie, the smallest change is that step itself.

    Returns:
        None if no change of one weight is enough: no endpoint was picked, no other was scored, the picker does not
        choose the highest total, or the picked endpoint is best in every term.
    Cost: O(candidates * scorers) and a sort; meant for people, not for every request.
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
    """Return the endpoints with the highest total under other weights, by name, in the fleet's order.

    Args:
        decision: the decision to recompute.
        weights: scorer name -> weight; other scorers keep their weight.
    Returns:
        None if weights do not decide: no endpoint was picked, or the picker does not choose the highest total.
    Cost: O(candidates * scorers).
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
    """Return the nearest weight past the tie at which the picked endpoint loses; None if no finite weight of at least 0 does."""
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
    """Return the total with another weight for one term, added in the order of the profile."""
    total = 0.0
    for number, term in enumerate(terms):
        total += (weight if number == changed else term.weight) * term.rating.score
    return total
