"""`max-score-picker`: order, exact ties, near ties, count."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.scorers.core.max_score import MaxScorePicker

NEXT_ABOVE_ONE = math.nextafter(1.0, 2.0)


@pytest.mark.parametrize(
    ("totals", "count", "picked"),
    [
        pytest.param((1.0, 3.0, 2.0), 1, [1], id="best"),
        pytest.param((1.0, 3.0, 2.0), 2, [1, 2], id="best_two"),
        pytest.param((1.0, 3.0, 2.0), 9, [1, 2, 0], id="count_above_the_fleet"),
        pytest.param((1.0, NEXT_ABOVE_ONE), 1, [1], id="near_tie_is_no_tie"),
        pytest.param((0.0,), 1, [0], id="one_endpoint"),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_picker_picks_the_highest_totals_for_every_draw(
    totals: tuple[float, ...], count: int, picked: list[int], seed: int
) -> None:
    assert MaxScorePicker(count).pick(np.array(totals), rng=random.Random(seed).random) == (picked, False)


def test_picker_orders_exact_ties_uniformly() -> None:
    rng = random.Random(7).random
    orders = Counter(
        tuple(MaxScorePicker(3).pick(np.array((2.0, 1.0, 2.0, 2.0)), rng=rng)[0]) for _ in range(6000)
    )

    assert set(orders) == set(itertools.permutations((0, 2, 3)))
    assert all(850 < n < 1150 for n in orders.values())


@pytest.mark.parametrize(
    ("totals", "tie"),
    [
        pytest.param((2.0, 2.0, 1.0), True, id="first_shared"),
        pytest.param((3.0, 2.0, 2.0), False, id="tie_below_the_first"),
        pytest.param((0.0, 0.0), True, id="all_zero"),
    ],
)
def test_picker_reports_whether_chance_decided_the_first(totals: tuple[float, ...], *, tie: bool) -> None:
    assert MaxScorePicker().pick(np.array(totals), rng=lambda: 0.0)[1] is tie


@given(
    totals=st.lists(st.sampled_from((0.0, 1.0, 2.5)), min_size=1, max_size=12),
    count=st.integers(1, 14),
    seed=st.integers(0, 2**32),
)
def test_picker_never_leaves_out_a_better_endpoint(totals: list[float], count: int, seed: int) -> None:
    picked, _ = MaxScorePicker(count).pick(np.array(totals), rng=random.Random(seed).random)

    assert len(set(picked)) == len(picked) == min(count, len(totals))
    assert [totals[index] for index in picked] == sorted(totals, reverse=True)[:count]
