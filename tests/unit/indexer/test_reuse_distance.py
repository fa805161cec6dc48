"""Reuse distances give the actual hit rates of caches of each size."""

from __future__ import annotations

import struct
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from kvatlas.indexer.reuse_distance import ReuseDistances

Uses = Sequence[Sequence[int]]


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


def distances_of(uses: Uses, **options: int) -> ReuseDistances:
    distances = ReuseDistances(**options)
    for keys in uses:
        distances.use(keys)
    return distances


@given(uses=prompts)
def test_hits_are_those_of_every_lru_cache_when_all_blocks_are_followed(uses: Uses) -> None:
    distances = distances_of(uses)

    capacities = range(60)
    assert distances.hits(capacities) == pytest.approx([brute_force(uses, each) for each in capacities])
    assert distances.n_blocks() == sum(map(len, uses))
    assert distances.rate == 1.0


@given(uses=prompts)
def test_hits_are_exact_up_to_the_largest_capacity_when_older_blocks_are_forgotten(uses: Uses) -> None:
    largest = max(14, *map(len, uses))
    distances = distances_of(uses, max_keys=largest, max_capacity=largest)

    capacities = range(largest + 1)
    assert distances.hits(capacities) == pytest.approx([brute_force(uses, each) for each in capacities])
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
def test_sample_of_bounded_size_is_near_brute_force(max_capacity: int | None) -> None:
    uses = skewed_uses(2000, seed=4)
    distances = ReuseDistances(max_keys=2000, max_capacity=max_capacity)
    for keys in uses:
        distances.use(keys)
        assert distances.n_keys <= 2000

    n_uses = sum(map(len, uses))
    assert distances.rate == (1 / 4 if max_capacity else 1 / 32)
    for capacity in (300, 1000, 3000, 8000):
        assert distances.hit_rate(capacity) == pytest.approx(brute_force(uses, capacity) / n_uses, abs=0.06)


def test_short_prompts_are_numbered_on_when_there_are_many() -> None:
    uses = [chain([number % 7]) for number in range(500)]

    assert distances_of(uses, max_keys=10).hit_rate(7) == pytest.approx(493 / 500)
    assert distances_of(uses, max_keys=10).hit_rate(6) == 0.0


def test_blocks_without_key_are_never_found() -> None:
    distances = ReuseDistances()
    for _ in range(2):
        distances.use(chain([1]), n_blocks=1.5)
    distances.use(chain([]), n_blocks=1.0)

    assert distances.hit_rate(10) == pytest.approx(1 / 4)


def test_nothing_used_finds_nothing() -> None:
    assert ReuseDistances().hit_rate(100) == 0.0
    assert distances_of([chain([1])]).hits([0, 100]) == [0.0, 0.0]


def test_uses_count_half_after_the_half_life() -> None:
    distances = ReuseDistances(half_life_s=10.0)
    distances.use(chain([1, 2]), now=100.0)
    distances.use(chain([1, 2]), now=100.0)
    assert distances.hit_rate(2, now=100.0) == pytest.approx(1 / 2)

    distances.use(chain([3]), now=110.0)
    assert distances.n_blocks(now=110.0) == pytest.approx(4 / 2 + 1)
    assert distances.hits([2], now=110.0) == pytest.approx([2 / 2])
    assert distances.n_blocks(now=120.0) == pytest.approx(3 / 2)


def test_weights_stay_finite_over_a_thousand_half_lives() -> None:
    distances = ReuseDistances(half_life_s=1.0)
    for now in range(0, 2000, 50):
        distances.use(chain([1, 2]), now=float(now))
        distances.use(chain([1, 2]), now=float(now))

    assert distances.hit_rate(2, now=1950.0) == pytest.approx(1.0)
    assert distances.n_blocks(now=1950.0) == pytest.approx(4.0)
