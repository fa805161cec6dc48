"""Totals that scorers cannot tell apart: picks, ties, and weights that would change them."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest

from kvatlas.scorers.core.candidates import Candidates
from kvatlas.scorers.core.counterfactual import leaders, smallest_change
from kvatlas.scorers.core.max_score import MaxScorePicker
from kvatlas.scorers.core.model import RequestView
from kvatlas.scorers.core.profile import Profile
from kvatlas.scorers.core.ratings import Ratings
from kvatlas.scorers.pickers.weighted_random import WeightedRandomPicker
from support.candidates import endpoint
from support.rating import decide

REQUEST = RequestView(model="m", now=0.0)
FLEET = [endpoint("a"), endpoint("b"), endpoint("c")]


class Coarse:
    """Scorer of 0.50, 0.48 and 0.30, which are known to within `resolution`."""

    type = "coarse"

    def __init__(self, resolution: object) -> None:
        self._resolution = resolution

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        return Ratings(np.array([0.50, 0.48, 0.30]), resolution=self._resolution)  # type: ignore[arg-type]


def test_the_better_one_is_picked_more_often() -> None:
    profile, rng = Profile([("coarse", Coarse(0.05), 2.0)], MaxScorePicker()), Random(1).random
    decisions = [decide(profile, REQUEST, FLEET, rng=rng) for _ in range(400)]
    n_best = sum(each.picked == ("a",) for each in decisions)

    assert {each.picked for each in decisions} == {("a",), ("b",)}
    assert 0.75 < n_best / 400 < 0.88, "1 - (1 - 0.02 / 0.05) ** 2 / 2"
    assert all(each.tie and each.tied == ("a", "b") for each in decisions)
    assert leaders(decisions[0], {}) == ("a", "b")
    changes = [smallest_change(each) for each in decisions if each.picked == ("b",)]
    assert changes == [None] * (400 - n_best), "no weight explains what chance decided"


class Fine:
    """Scorer of 0, 1 and 0, which are known exactly."""

    type = "fine"

    def rate(self, request: RequestView, candidates: Candidates) -> Ratings:  # noqa: ARG002 (Scorer)
        return Ratings(np.array([0.0, 1.0, 0.0]))


def test_weight_that_takes_the_lead_from_the_pick_names_the_others_alone() -> None:
    profile = Profile([("coarse", Coarse(0.05), 1.0), ("fine", Fine(), 0.01)], MaxScorePicker())
    rng = Random(1).random
    (decision, *_) = (
        each
        for each in (decide(profile, REQUEST, FLEET, rng=rng) for _ in range(50))
        if each.picked == ("a",)
    )
    change = smallest_change(decision)

    assert change is not None
    assert change.new_weight == pytest.approx(0.02)
    assert (change.scorer, change.picks) == ("fine", ("b",))


def test_further_picks_are_in_the_order_of_their_totals() -> None:
    profile = Profile([("coarse", Coarse(0.05), 1.0)], MaxScorePicker(2))
    rng = Random(1).random
    found = {decide(profile, REQUEST, FLEET, rng=rng).picked for _ in range(50)}

    assert found == {("a", "b"), ("b", "a")}


@pytest.mark.parametrize("resolution", [0.0, -1.0, 2.0, math.nan, math.inf])
def test_impossible_resolutions_are_ignored(resolution: float) -> None:
    decision = decide(Profile([("coarse", Coarse(resolution), 1.0)], MaxScorePicker()), REQUEST, FLEET)

    assert (decision.picked, decision.tied, decision.faults) == (("a",), ("a",), ())


def test_resolution_that_is_no_number_is_a_fault_of_the_scorer() -> None:
    decision = decide(Profile([("coarse", Coarse("much"), 1.0)], MaxScorePicker()), REQUEST, FLEET)

    assert [each.name for each in decision.faults] == ["coarse"]
    assert decision.picked


def test_picker_that_knows_no_resolution_picks_as_ever() -> None:
    profile = Profile([("coarse", Coarse(0.05), 1.0)], WeightedRandomPicker())
    decision = decide(profile, REQUEST, FLEET, rng=Random(1).random)

    assert decision.tied == ("a",)
