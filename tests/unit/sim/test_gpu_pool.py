from __future__ import annotations

from collections import Counter

import pytest

from kvatlas.events.model import EngineHash
from kvatlas.sim.gpu_pool import GpuPool

A, B, C = EngineHash(1), EngineHash(2), EngineHash(3)


def test_block_zero_is_reserved_as_in_vllm() -> None:
    pool = GpuPool(4)

    blocks, evicted = pool.take(3)

    assert (pool.capacity, blocks, evicted) == (3, [1, 2, 3], [])


def test_take_raises_when_too_few_are_free() -> None:
    with pytest.raises(ValueError, match="want 4 blocks, 3 are free"):
        GpuPool(4).take(4)


def test_free_block_stays_a_hit_until_taken() -> None:
    pool = GpuPool(3)
    (first, second), _ = pool.take(2)
    pool.cache(first, A)
    pool.cache(second, B)
    pool.give_back([second, first])

    assert (pool.n_free, pool.find(A), pool.find(B)) == (2, first, second)
    assert pool.take(1) == ([second], [B])
    assert (pool.find(A), pool.find(B)) == (first, None)


def test_blocks_without_hash_are_reused_first() -> None:
    pool = GpuPool(5)
    (cached, plain, plain2), _ = pool.take(3)
    pool.cache(cached, A)
    pool.give_back([plain2, plain, cached])

    assert pool.take(4) == ([plain2, plain, 4, cached], [A])


def test_shared_block_is_free_only_after_the_last_reference() -> None:
    pool = GpuPool(2)
    (block,), _ = pool.take(1)
    pool.cache(block, A)
    pool.share(block)

    pool.give_back([block])
    assert (pool.n_free, pool.n_used, pool.references) == (0, 1, 1)
    pool.give_back([block])
    assert (pool.n_free, pool.n_used, pool.references) == (1, 0, 0)


def test_two_copies_of_a_hash_are_evicted_one_by_one() -> None:
    pool = GpuPool(3)
    (first, second), _ = pool.take(2)
    pool.cache(first, A)
    pool.cache(second, A)
    pool.give_back([first, second])

    assert pool.copies() == Counter({A: 2})
    assert pool.take(1) == ([first], [A])
    assert pool.find(A) == second


def test_forgotten_hashes_are_not_reported_as_evicted() -> None:
    pool = GpuPool(2)
    (block,), _ = pool.take(1)
    pool.cache(block, C)
    pool.give_back([block])

    pool.forget_hashes()

    assert (pool.find(C), pool.take(1)) == (None, ([block], []))
