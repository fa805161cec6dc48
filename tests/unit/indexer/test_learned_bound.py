"""The bound learned from the audit: unchanged at first, within its limits, and finally near the capacity."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.capacity import Basis
from kvatlas.indexer.learned_bound import ENOUGH_REQUESTS, RECENT, LearnedBound, TierReuse

HIGHEST = 4_000_000
KEPT, GONE, MORE = TierReuse(100, 100, 0), TierReuse(100, 0, 0), TierReuse(0, 0, 100)
NOTHING = TierReuse(0, 0, 0)


@st.composite
def reuses(draw: st.DrawFn) -> TierReuse:
    """More than expected is reused only if all expected tokens are."""
    expected = draw(st.integers(0, 10_000))
    reused = draw(st.just(expected) | st.integers(0, expected))
    return TierReuse(expected, reused, draw(st.integers(0, 10_000)) if reused == expected else 0)


def experienced() -> LearnedBound:
    """Return a bound that has enough evidence to change with the next request."""
    learned = LearnedBound(highest=HIGHEST)
    for _ in range(ENOUGH_REQUESTS):
        learned.update(KEPT, bound=1000, n_held=1000)
    return learned


@given(told=st.lists(reuses(), max_size=ENOUGH_REQUESTS), bound=st.integers(1, HIGHEST))
def test_nothing_is_learned_of_few_requests(told: list[TierReuse], bound: int) -> None:
    learned = LearnedBound(highest=HIGHEST)
    for reuse in told:
        learned.update(reuse, bound=bound, n_held=bound)

    assert (learned.n_blocks, learned.observed()) == (None, None)


@pytest.mark.parametrize(
    ("reuse", "n_held", "lowest", "highest"),
    [
        pytest.param(KEPT, 1000, 1001, 1030, id="kept"),
        pytest.param(MORE, 1000, 1500, 1700, id="more_than_expected"),
        pytest.param(GONE, 1000, 600, 700, id="gone"),
        pytest.param(GONE, 100, 60, 70, id="gone_though_little_was_held"),
        pytest.param(TierReuse(100, 51, 0), 1000, 1001, 1030, id="end_of_a_chunk"),
        pytest.param(TierReuse(1, 0, 0), 1000, 990, 999, id="gone_but_little"),
    ],
)
def test_bound_goes_where_a_request_points(reuse: TierReuse, n_held: int, lowest: int, highest: int) -> None:
    learned = experienced()
    learned.update(reuse, bound=1000, n_held=n_held)

    assert learned.n_blocks is not None
    assert lowest <= learned.n_blocks <= highest


@pytest.mark.parametrize(
    ("reuse", "n_held"),
    [
        pytest.param(NOTHING, 1000, id="nothing_expected"),
        pytest.param(KEPT, 900, id="tier_not_full"),
        pytest.param(MORE, 900, id="more_but_tier_not_full"),
    ],
)
def test_bound_stays_where_a_request_shows_nothing_of_it(reuse: TierReuse, n_held: int) -> None:
    learned = experienced()
    learned.update(reuse, bound=1000, n_held=n_held)

    assert learned.n_blocks is None


@given(
    told=st.lists(st.tuples(reuses(), st.floats(0, 1)), max_size=150),
    first=st.integers(1, HIGHEST),
    highest=st.integers(1, HIGHEST),
)
def test_bound_keeps_within_its_limits_whatever_it_is_told(
    told: list[tuple[TierReuse, float]], first: int, highest: int
) -> None:
    learned, bound = LearnedBound(highest=highest), min(first, highest)
    for reuse, fill in told:
        learned.update(reuse, bound=bound, n_held=int(fill * bound))
        bound = learned.n_blocks or bound
        assert 1 <= bound <= highest


@pytest.mark.parametrize("first", [50, 1000, HIGHEST])
@pytest.mark.parametrize("capacity", [300, 5000, 90_000])
def test_bound_comes_near_the_capacity_of_an_engine_from_wherever_it_began(capacity: int, first: int) -> None:
    """Simulate prompts with random reuse distances, mostly short, that are reused if the engine still has them."""
    draw, learned = random.Random(capacity), LearnedBound(highest=HIGHEST)
    bound, far = first, 10.0
    for n_requests in range(4000):
        depth = draw.expovariate(1 / capacity)
        expected, reused = 100 * (depth < bound), 100 * (depth < capacity)
        reuse = TierReuse(expected, min(expected, reused), max(0, reused - expected))
        learned.update(reuse, bound=bound, n_held=min(bound, 20 * capacity))
        bound = learned.n_blocks or bound
        if n_requests == 1000:
            far = bound / capacity

    observed = learned.observed()
    assert far == pytest.approx(1, abs=0.4)
    assert bound == pytest.approx(capacity, rel=0.15)
    assert observed is not None
    assert observed.basis is Basis.AUDIT
    assert observed.n_blocks == pytest.approx(capacity, rel=observed.error)


def test_bounds_that_differ_much_are_no_observation() -> None:
    learned = experienced()
    for number in range(2 * RECENT):
        learned.update(GONE if number % 2 else MORE, bound=1000, n_held=1000)

    assert learned.n_blocks is not None
    assert learned.observed() is None


@pytest.mark.parametrize("n_replicas", [2, 5])
def test_processes_learn_the_bound_together_as_one_does_from_all_their_requests(n_replicas: int) -> None:
    """As above, with requests in turn; what one has learned reaches the others before the next request but one."""
    capacity, draw = 5000, random.Random(1)
    replicas = [LearnedBound(highest=HIGHEST) for _ in range(n_replicas)]
    told: list[list[float]] = [[] for _ in replicas]
    far: list[float] = []
    for n_requests in range(2000):
        each, bound = replicas[n_requests % n_replicas], 50
        bound = each.n_blocks or bound
        depth = draw.expovariate(1 / capacity)
        expected, reused = 100 * (depth < bound), 100 * (depth < capacity)
        reuse = TierReuse(expected, min(expected, reused), max(0, reused - expected))
        each.update(reuse, bound=bound, n_held=min(bound, 20 * capacity))
        for number, replica in enumerate(replicas):
            replica.add_up(numbers for place, numbers in enumerate(told) if place != number)
        told = [[*replica.lesson] for replica in replicas]
        if n_requests >= 1000:
            far.append((each.n_blocks or 0) / capacity)

    assert min(far) > 0.6
    assert max(far) < 1.4
    for number, replica in enumerate(replicas):
        replica.add_up(numbers for place, numbers in enumerate(told) if place != number)
    assert len({replica.n_blocks for replica in replicas}) == 1
    observed = replicas[0].observed()
    assert observed is not None
    assert observed.n_samples > 2000 / n_replicas, "requests of all"


@given(
    others=st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 9), max_size=5), max_size=3
    )
)
def test_bound_keeps_within_its_limits_whatever_others_tell(others: list[list[float]]) -> None:
    learned = experienced()
    learned.add_up(others)
    learned.update(GONE, bound=1000, n_held=1000)

    assert learned.n_blocks is not None
    assert 1 <= learned.n_blocks <= HIGHEST


def test_of_bounds_that_moved_at_the_same_time_all_processes_keep_the_same() -> None:
    one, other = experienced(), experienced()
    one.update(GONE, bound=1000, n_held=1000)
    other.update(KEPT, bound=1000, n_held=1000)
    first, second = [*one.lesson], [*other.lesson]
    for _ in range(2):  # a message that comes again changes nothing
        one.add_up([second])
        other.add_up([first])

    assert one.n_blocks == other.n_blocks == 1015
