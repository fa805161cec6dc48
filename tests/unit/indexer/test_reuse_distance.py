"""Reuse distances give the actual hit rates of caches of each size."""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from random import Random
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvatlas.indexer.factory import MakeReuseDistances, index_core
from kvatlas.indexer.reuse_distance import ReferenceReuseDistances, ReuseDistances
from support.cores import CORES

Uses: TypeAlias = "Sequence[array[int]]"


def chain(blocks: Iterable[int], parent: int = 0) -> array[int]:
    """Return the keys of a prompt with these blocks."""
    keys = array("Q")
    for block in blocks:
        parent = xxh3_64_intdigest(struct.pack("<QQ", parent, block))
        keys.append(parent)
    return keys


prompts = st.lists(st.lists(st.integers(0, 2), max_size=7).map(chain), min_size=1, max_size=40)


def brute_force(uses: Uses, capacity: int) -> int:
    """Return the hits of an LRU cache that looks up whole prompts and then inserts them from their end."""
    cache: OrderedDict[int, None] = OrderedDict()
    found = 0
    for keys in uses:
        found += sum(key in cache for key in keys)
        for key in reversed(keys):
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return found


BOTH = pytest.mark.parametrize("make", [each.reuse_distances for each in CORES.values()], ids=CORES)


def empty(
    make: MakeReuseDistances,
    *,
    max_keys: int = 32_768,
    max_capacity: int | None = None,
    half_life_s: float | None = None,
) -> ReuseDistances:
    return make(max_keys=max_keys, max_capacity=max_capacity, half_life_s=half_life_s)


def use(
    distances: ReuseDistances, keys: array[int], *, n_blocks: float | None = None, now: float = 0.0
) -> None:
    distances.use(keys, 1, n_blocks, now)


def hit_rate(distances: ReuseDistances, capacity: int, *, now: float = 0.0) -> float:
    n_blocks = distances.n_blocks(now=now)
    return distances.hits([capacity], now=now)[0] / n_blocks if n_blocks else 0.0


def distances_of(make: MakeReuseDistances, uses: Uses, **options: int) -> ReuseDistances:
    distances = empty(make, **options)
    for keys in uses:
        use(distances, keys)
    return distances


@BOTH
@given(uses=prompts)
def test_hits_are_those_of_every_lru_cache_when_all_blocks_are_followed(
    make: MakeReuseDistances, uses: Uses
) -> None:
    distances = distances_of(make, uses)

    capacities = range(60)
    found = distances.hits(capacities, now=0.0)
    assert found == pytest.approx([brute_force(uses, each) for each in capacities])
    assert distances.n_blocks(now=0.0) == sum(map(len, uses))
    assert distances.rate == 1.0


@BOTH
@given(uses=prompts)
def test_hits_are_exact_up_to_the_largest_capacity_when_older_blocks_are_forgotten(
    make: MakeReuseDistances, uses: Uses
) -> None:
    largest = max(14, *map(len, uses))
    distances = distances_of(make, uses, max_keys=largest, max_capacity=largest)

    capacities = range(largest + 1)
    found = distances.hits(capacities, now=0.0)
    assert found == pytest.approx([brute_force(uses, each) for each in capacities])
    assert distances.n_keys <= largest
    assert distances.rate == 1.0


def skewed_uses(n_prompts: int, seed: int) -> list[array[int]]:
    """Generate prompts that continue one of 60 openings, some much hotter than others."""
    rng = Random(seed)
    openings = [chain(rng.getrandbits(40) for _ in range(rng.randint(20, 100))) for _ in range(60)]
    found: list[array[int]] = []
    for _ in range(n_prompts):
        opening = openings[min(59, int(rng.paretovariate(0.6)) - 1)]
        found.append(opening + chain((rng.getrandbits(40) for _ in range(20)), opening[-1]))
    return found


@pytest.mark.parametrize("max_capacity", [pytest.param(None, id="all"), pytest.param(8000, id="forgetting")])
@BOTH
def test_sample_of_bounded_size_is_near_brute_force(
    make: MakeReuseDistances, max_capacity: int | None
) -> None:
    uses = skewed_uses(2000, seed=4)
    distances = empty(make, max_keys=2000, max_capacity=max_capacity)
    for keys in uses:
        use(distances, keys)
        assert distances.n_keys <= 2000

    n_uses = sum(map(len, uses))
    assert distances.rate == (1 / 4 if max_capacity else 1 / 32)
    for capacity in (300, 1000, 3000, 8000):
        assert hit_rate(distances, capacity) == pytest.approx(brute_force(uses, capacity) / n_uses, abs=0.06)


@BOTH
def test_short_prompts_are_numbered_on_when_there_are_many(make: MakeReuseDistances) -> None:
    uses = [chain([number % 7]) for number in range(500)]

    assert hit_rate(distances_of(make, uses, max_keys=10), 7) == pytest.approx(493 / 500)
    assert hit_rate(distances_of(make, uses, max_keys=10), 6) == 0.0


@BOTH
def test_blocks_without_key_are_never_found(make: MakeReuseDistances) -> None:
    distances = empty(make)
    for _ in range(2):
        use(distances, chain([1]), n_blocks=1.5)
    use(distances, chain([]), n_blocks=1.0)

    assert hit_rate(distances, 10) == pytest.approx(1 / 4)


@BOTH
def test_last_block_of_each_chunk_stands_for_it(make: MakeReuseDistances) -> None:
    keys = chain([1, 2, 3, 4, 5])
    distances, chunks = empty(make), empty(make)
    for _ in range(2):
        distances.use(keys, 2, 2.5, 0.0)
        use(chunks, array("Q", [keys[1], keys[3]]), n_blocks=2.5)

    assert distances.hits([1, 2], now=0.0) == chunks.hits([1, 2], now=0.0) == [1.0, 2.0]
    assert distances.n_keys == 2


@BOTH
def test_nothing_used_finds_nothing(make: MakeReuseDistances) -> None:
    assert hit_rate(empty(make), 100) == 0.0
    assert distances_of(make, [chain([1])]).hits([0, 100], now=0.0) == [0.0, 0.0]


@BOTH
def test_uses_count_half_after_the_half_life(make: MakeReuseDistances) -> None:
    distances = empty(make, half_life_s=10.0)
    use(distances, chain([1, 2]), now=100.0)
    use(distances, chain([1, 2]), now=100.0)
    assert hit_rate(distances, 2, now=100.0) == pytest.approx(1 / 2)

    use(distances, chain([3]), now=110.0)
    assert distances.n_blocks(now=110.0) == pytest.approx(4 / 2 + 1)
    assert distances.hits([2], now=110.0) == pytest.approx([2 / 2])
    assert distances.n_blocks(now=120.0) == pytest.approx(3 / 2)


@BOTH
def test_weights_stay_finite_over_a_thousand_half_lives(make: MakeReuseDistances) -> None:
    distances = empty(make, half_life_s=1.0)
    for now in range(0, 2000, 50):
        use(distances, chain([1, 2]), now=float(now))
        use(distances, chain([1, 2]), now=float(now))

    assert hit_rate(distances, 2, now=1950.0) == pytest.approx(1.0)
    assert distances.n_blocks(now=1950.0) == pytest.approx(4.0)


@BOTH
def test_figures_read_after_many_half_lives_have_the_weight_of_that_time(make: MakeReuseDistances) -> None:
    distances = empty(make, half_life_s=1.0)
    for _ in range(2):
        use(distances, chain([1, 2]))

    assert distances.hits([2], now=65.0) == pytest.approx([2 / 2**65])
    assert distances.n_blocks(now=130.0) == pytest.approx(4 / 2**130)


keys = st.integers(0, 40).map(lambda key: key << 58 | key)
"""Keys over the whole range, so that a halving of the sampling rate drops about half of them; one prompt may repeat some."""


@given(
    uses=st.lists(
        st.tuples(
            st.lists(keys, max_size=12) | st.lists(keys, max_size=12, unique=True),
            st.integers(1, 3),
            st.none() | st.floats(0, 20),
            st.floats(0, 40),
        ),
        max_size=40,
    ),
    max_keys=st.integers(1, 12),
    max_capacity=st.none() | st.integers(1, 100),
    half_life_s=st.none() | st.floats(0.1, 100),
)
def test_native_figures_are_exactly_those_of_the_reference(
    uses: list[tuple[list[int], int, float | None, float]],
    max_keys: int,
    max_capacity: int | None,
    half_life_s: float | None,
) -> None:
    both = [
        make(max_keys=max_keys, max_capacity=max_capacity, half_life_s=half_life_s)
        for make in (ReferenceReuseDistances, index_core().reuse_distances)
    ]
    capacities = (0, 1, 2, 3, 5, 8, 100, 1 << 62)
    now = 0.0
    for numbers, stride, n_blocks, later in uses:
        now += later
        figures: list[tuple[object, ...]] = []
        for each in both:
            each.use(array("Q", numbers), stride, n_blocks, now)
            figures.append((each.hits(capacities, now=now), each.n_blocks(now=now), each.n_keys, each.rate))
        assert figures[0] == figures[1]
