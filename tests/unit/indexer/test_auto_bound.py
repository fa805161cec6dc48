"""The bound from evictions: above the engine's blocks, steady, and lifted if the engine holds more."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.auto_bound import HEADROOM, AutoBound
from kvatlas.indexer.capacity import CapacityGauge, ObservedCapacity


def shown(n_blocks: int) -> ObservedCapacity:
    return ObservedCapacity(n_blocks, 0.0, 8)


def test_tier_has_no_bound_until_its_evictions_show_one() -> None:
    bound = AutoBound()

    assert bound.follow(None, n_held=100, n_doubts=0) is None
    assert bound.follow(shown(100), n_held=100, n_doubts=0) == 105
    assert bound.follow(None, n_held=80, n_doubts=0) == 105


def test_bound_that_the_engine_fills_is_lifted_until_more_is_shown() -> None:
    bound = AutoBound()
    bound.follow(shown(100), n_held=100, n_doubts=0)

    assert bound.follow(shown(100), n_held=105, n_doubts=0) is None
    assert bound.follow(shown(104), n_held=110, n_doubts=0) is None
    assert bound.follow(shown(200), n_held=190, n_doubts=0) == 210


def test_bound_that_is_filled_after_a_loss_or_a_reset_stays() -> None:
    """A full tier may contain blocks whose removal was not reported."""
    bound = AutoBound()
    bound.follow(shown(100), n_held=100, n_doubts=2)

    assert bound.follow(None, n_held=105, n_doubts=3) == 105


@given(
    capacity=st.integers(20, 5000),
    fills=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=300),
)
def test_bound_rises_a_few_times_and_stays_where_it_takes_nothing(capacity: int, fills: list[float]) -> None:
    """Simulate an engine that evicts at any fill and finally when full; the index holds blocks within the bound."""
    gauge, bound, bounds = CapacityGauge(), AutoBound(), list[int]()
    in_force: int | None = None
    for fill in (*fills, *[1.0] * 40):
        for n_blocks in (math.ceil(fill * capacity), math.floor(0.9 * fill * capacity)):
            held = n_blocks if in_force is None else min(n_blocks, in_force)
            gauge.observe(held)
            in_force = bound.follow(gauge.observed(), n_held=held, n_doubts=0)
            if in_force is not None and in_force not in bounds:
                bounds.append(in_force)

    assert bounds == sorted(bounds)
    assert all(later >= earlier * (1 + HEADROOM) for earlier, later in itertools.pairwise(bounds))
    assert in_force is None or capacity <= in_force <= math.ceil(capacity * (1 + HEADROOM))
