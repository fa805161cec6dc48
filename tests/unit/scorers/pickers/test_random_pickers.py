"""`random-picker` and `weighted-random-picker`: frequencies of the picked endpoints."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from kvatlas.scorers.core.base import Picker
from kvatlas.scorers.pickers.random_choice import RandomPicker
from kvatlas.scorers.pickers.weighted_random import WeightedRandomPicker

N = 6000


def shares(picker: Picker, totals: tuple[float, ...]) -> list[float]:
    """Count how often each endpoint is picked first."""
    rng = random.Random(7).random
    first = Counter(picker.pick(np.array(totals), rng=rng)[0][0] for _ in range(N))
    return [first[row] / N for row in range(len(totals))]


@pytest.mark.parametrize(
    ("picker", "totals", "expected"),
    [
        pytest.param(RandomPicker(), (5.0, 0.0, 1.0), (1 / 3, 1 / 3, 1 / 3), id="random_whatever_the_totals"),
        pytest.param(WeightedRandomPicker(), (1.0, 2.0, 1.0), (0.25, 0.5, 0.25), id="in_proportion"),
        pytest.param(WeightedRandomPicker(), (3.0, 0.0, 1.0), (0.75, 0.0, 0.25), id="never_a_zero"),
        pytest.param(WeightedRandomPicker(), (0.0, 0.0), (0.5, 0.5), id="all_zero_is_random"),
        pytest.param(
            WeightedRandomPicker(), (3e-12, 1e-12), (0.75, 0.25), id="small_totals_do_not_underflow"
        ),
        pytest.param(WeightedRandomPicker(), (300.0, 100.0), (0.75, 0.25), id="large_totals"),
    ],
)
def test_endpoints_are_picked_first_with_the_expected_frequency(
    picker: Picker, totals: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    assert shares(picker, totals) == pytest.approx(expected, abs=0.03)


def test_weighted_picker_picks_zero_totals_last() -> None:
    rng = random.Random(7).random

    for _ in range(100):
        picked, _ = WeightedRandomPicker(3).pick(np.array((0.0, 1.0, 2.0)), rng=rng)
        assert picked[2] == 0
        assert set(picked[:2]) == {1, 2}


def test_weighted_picker_survives_a_draw_of_zero() -> None:
    picked, _ = WeightedRandomPicker(2).pick(np.array((1.0, 2.0)), rng=lambda: 0.0)

    assert set(picked) == {0, 1}


@pytest.mark.parametrize(
    ("picker", "totals", "by_chance"),
    [
        pytest.param(RandomPicker(), (1.0,), False, id="random_alone"),
        pytest.param(RandomPicker(), (1.0, 2.0), True, id="random_of_two"),
        pytest.param(WeightedRandomPicker(), (1.0, 0.0), False, id="weighted_without_choice"),
        pytest.param(WeightedRandomPicker(), (1.0, 2.0), True, id="weighted_of_two"),
        pytest.param(WeightedRandomPicker(), (0.0, 0.0), True, id="weighted_of_two_zeros"),
    ],
)
def test_pickers_report_whether_chance_decided(
    picker: Picker, totals: tuple[float, ...], *, by_chance: bool
) -> None:
    assert picker.pick(np.array(totals), rng=lambda: 0.5)[1] is by_chance
