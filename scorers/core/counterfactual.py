"""Effect of other weights on a decision, computed afterwards on demand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from .columns import FloatArray, weighted_sums
from .decision import Decision, qualified
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
        choose the highest total, chance decided against it, or the picked endpoint is best in every term.
    Cost: O(candidates * scorers) and a sort; meant for people, not for every request.
    """
    if not decision.picked or decision.picker != MaxScorePicker.type:
        return None
    totals = decision.totals
    total = float(totals[decision.row])
    if total < totals.max():
        return None
    # negative weights can make a total of large terms small
    size = float(
        weighted_sums(decision.scores, [abs(each.weight) for each in decision.scorers])[decision.row]
    )
    for tie in _ties(decision, totals):
        change = _past(tie, decision, size)
        if change is not None:
            return change
    return None


def leaders(decision: Decision, weights: Mapping[str, float]) -> tuple[str, ...] | None:
    """Return the endpoints with the highest total under other weights, by name, in the fleet's order.

    Args:
        decision: the decision to recompute.
        weights: scorer name -> weight, `profile/name` if the configuration has a handler; other scorers keep their weight.
    Returns:
        None if weights do not decide: no endpoint was picked, or the picker does not choose the highest total.
    Cost: O(candidates * scorers).
    """
    if not decision.picked or decision.picker != MaxScorePicker.type:
        return None
    names = [name for name, _, _ in decision.scorers]
    if decision.placement is not None:
        names = [qualified(decision.placement.profile, name) for name in names]
    changed = [weights.get(name, each.weight) for name, each in zip(names, decision.scorers, strict=True)]
    return decision.leaders(weighted_sums(decision.scores, changed))


def _ties(decision: Decision, totals: FloatArray) -> Iterator[_Tie]:
    """Yield the ties with the picked endpoint, the nearest first."""
    found: list[_Tie] = []
    row = decision.row
    for number, (_, _, weight) in enumerate(decision.scorers):
        scores = decision.scores[number]
        slopes = scores - scores[row]
        rivals = np.flatnonzero(slopes)
        gains = slopes[rivals]
        changes = (totals[row] - totals[rivals]) / gains
        possible = (weight + changes >= 0) | (gains > 0)  # past a tie below 0, the rival leads at 0 too
        for change, slope in zip(changes[possible].tolist(), gains[possible].tolist(), strict=True):
            found.append(_Tie(number, weight + change, slope, max(abs(change), -weight)))
    yield from sorted(found, key=lambda each: each.distance)


def _past(tie: _Tie, decision: Decision, size: float) -> WeightChange | None:
    """Return the nearest weight past the tie at which the picked endpoint loses; None if no finite weight of at least 0 does."""
    step = max(math.ulp(tie.weight), math.ulp(size) / abs(tie.slope))
    name, _, before = decision.scorers[tie.term]
    weights = [each.weight for each in decision.scorers]
    for _ in range(MAX_STEPS):
        weight = max(0.0, tie.weight + math.copysign(step, tie.slope))
        if not math.isfinite(weight):
            return None
        weights[tie.term] = weight
        totals = weighted_sums(decision.scores, weights)
        if totals[decision.row] < (highest := totals.max()):
            # not `leaders`: these may be below by the resolution, as the picked endpoint then is
            best = np.flatnonzero(totals == highest).tolist()
            return WeightChange(name, before, weight, tuple(decision.kept_names[row] for row in best))
        step *= 2
    return None
