"""Block reuse as in vLLM 0.32, and the events of single operations."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from kvatlas.events.model import EngineHash
from kvatlas.sim.block_cache import BlockCache, Hit, Lease, Wait
from kvatlas.sim.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvatlas.sim.sequence import Lora, TokenSequence

BLOCK = 4
LORA = Lora("adapter", 7)


def make_cache(**sizes: Any) -> BlockCache:
    defaults: dict[str, Any] = {"gpu_blocks": 32}
    return BlockCache(block_size=BLOCK, **defaults | sizes)


def make_sequence(n_tokens: int, *, first: int = 0, **identity: Any) -> TokenSequence:
    return TokenSequence(array("I", range(first, first + n_tokens)), block_size=BLOCK, **identity)


def admit(cache: BlockCache, sequence: TokenSequence) -> Lease:
    admitted = cache.admit(sequence)
    assert not isinstance(admitted, Wait)
    return admitted[0]


def compute(cache: BlockCache, lease: Lease) -> list[Event]:
    """Load and prefill all, offload, and finish the copies."""
    events = cache.complete_load(lease) if lease.hit.cpu_tokens else []
    extended = cache.extend(lease, len(lease.sequence) - lease.n_computed)
    assert extended is not None
    offload = cache.offload(lease)
    return events + extended + list(offload.events) + cache.complete_transfer(offload)


def serve(cache: BlockCache, sequence: TokenSequence) -> Lease:
    lease = admit(cache, sequence)
    compute(cache, lease)
    cache.release(lease)
    return lease


def evict_gpu(cache: BlockCache) -> None:
    """Take all GPU blocks for other content, so that no hash remains."""
    cache.gpu.give_back(cache.gpu.take(cache.gpu.capacity)[0])


def cache_on_gpu(cache: BlockCache, hashes: list[EngineHash]) -> None:
    """Cache blocks only on the GPU, like generated ones."""
    for block, key in zip(cache.gpu.take(len(hashes))[0], hashes, strict=True):
        cache.gpu.cache(block, key)


@pytest.mark.parametrize(
    ("cached", "asked", "blocks"),
    [
        pytest.param(12, 12, 2, id="the_last_token_is_always_computed"),
        pytest.param(12, 13, 3, id="one_token_more"),
        pytest.param(13, 20, 3, id="partial_blocks_do_not_count"),
        pytest.param(3, 3, 0, id="less_than_a_block"),
    ],
)
def test_gpu_hit_is_gap_free_and_spares_the_last_token(cached: int, asked: int, blocks: int) -> None:
    cache = make_cache()
    serve(cache, make_sequence(cached))

    assert cache.lookup(make_sequence(asked)) == Hit(blocks)


@pytest.mark.parametrize(
    ("on_cpu", "on_gpu", "asked", "hit"),
    [
        pytest.param(16, 1, 24, Hit(0, 16), id="all_from_cpu"),
        pytest.param(16, 1, 16, Hit(0, 16), id="the_whole_prompt_when_chunk_aligned"),
        pytest.param(16, 4, 24, Hit(1, 12), id="from_the_chunk_with_the_gpu_boundary"),
        pytest.param(16, 12, 24, Hit(3), id="less_than_a_chunk_gained"),
        pytest.param(8, 4, 24, Hit(1), id="less_than_a_chunk_gained_at_the_start"),
        pytest.param(16, 8, 15, Hit(2), id="no_whole_chunk_in_the_prompt"),
        pytest.param(16, 8, 20, Hit(2, 8), id="on_a_chunk_boundary"),
    ],
)
def test_cpu_hit_counts_whole_chunks_of_two_blocks(on_cpu: int, on_gpu: int, asked: int, hit: Hit) -> None:
    cache = make_cache(cpu_blocks=32, chunk_blocks=2)
    serve(cache, make_sequence(on_cpu))
    evict_gpu(cache)
    cache_on_gpu(cache, make_sequence(on_gpu).hashes)

    assert cache.lookup(make_sequence(asked)) == hit


def test_generated_blocks_are_cached_on_gpu_but_never_offloaded() -> None:
    cache = make_cache(cpu_blocks=32)
    sequence = make_sequence(6)
    lease = admit(cache, sequence)
    compute(cache, lease)
    for token in range(6, 12):
        sequence.extend([token])
        assert cache.extend(lease, 1) is not None
        assert cache.offload(lease).chunks == ()
    cache.release(lease)

    assert cache.lookup(make_sequence(20)) == Hit(3)
    evict_gpu(cache)
    assert cache.lookup(make_sequence(20)) == Hit(0, 4)


def test_prefill_stores_once_and_evicts_before_it_stores() -> None:
    cache = make_cache(gpu_blocks=5)
    old = make_sequence(16)
    serve(cache, old)

    new = make_sequence(11, first=100)
    events = compute(cache, admit(cache, new))

    removed = [
        BlockRemoved(block_hashes=(key,), medium="GPU", group_idx=0) for key in reversed(old.hashes[1:])
    ]
    stored = BlockStored(
        block_hashes=tuple(new.hashes),
        parent_block_hash=None,
        token_ids=tuple(range(100, 108)),
        block_size=BLOCK,
        lora_id=None,
        medium="GPU",
        lora_name=None,
        extra_keys=(None, None),
        group_idx=0,
        kv_cache_spec_kind="full_attention",
    )
    assert events == [*removed, stored]


def test_store_after_a_hit_names_its_parent() -> None:
    cache = make_cache()
    serve(cache, make_sequence(8))
    longer = make_sequence(16)

    (stored,) = compute(cache, admit(cache, longer))

    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == tuple(longer.hashes[2:])
    assert stored.parent_block_hash == longer.hashes[1]


def test_recomputed_last_block_is_a_second_copy() -> None:
    cache = make_cache()
    serve(cache, make_sequence(8))
    sequence = make_sequence(8)

    (stored,) = compute(cache, admit(cache, sequence))

    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == (sequence.hashes[1],)
    assert cache.gpu.copies() == {sequence.hashes[0]: 1, sequence.hashes[1]: 2}


def test_load_stores_on_gpu_with_tokens_and_keeps_the_cpu_copy() -> None:
    cache = make_cache(cpu_blocks=8)
    sequence = make_sequence(8)
    serve(cache, sequence)
    evict_gpu(cache)
    lease = admit(cache, make_sequence(8))

    (stored,) = cache.complete_load(lease)

    assert isinstance(stored, BlockStored)
    assert (stored.medium, stored.token_ids) == ("GPU", tuple(range(8)))
    assert lease.n_computed == 7  # the last token is computed again, in its own block
    assert {chunk.key for chunk in cache.cpu.chunks()} == set(sequence.hashes)


def test_cpu_events_describe_their_chunk_when_self_describing() -> None:
    cache = make_cache(cpu_blocks=4, chunk_blocks=2)
    sequence = make_sequence(19, lora=LORA, salt="s")
    lease = admit(cache, sequence)
    cache.extend(lease, 19)

    stores = cache.complete_transfer(cache.offload(lease))

    assert all(isinstance(event, BlockStored) and event.extra_keys is None for event in stores)
    told = {(event.parent_block_hash, event.token_ids) for event in stores if isinstance(event, BlockStored)}
    assert told == {(None, tuple(range(8))), (sequence.hashes[1], tuple(range(8, 16)))}
    assert {(event.lora_id, event.lora_name) for event in stores if isinstance(event, BlockStored)} == {
        (7, "adapter")
    }


def test_cpu_events_name_the_last_block_of_a_chunk_when_not_self_describing() -> None:
    cache = make_cache(cpu_blocks=2, chunk_blocks=2, self_describing=False)
    sequence = make_sequence(8)
    serve(cache, sequence)

    other = make_sequence(8, first=50)
    removed, stored = compute(cache, admit(cache, other))[-2:]

    assert removed == BlockRemoved(block_hashes=(sequence.hashes[1],), medium="CPU", group_idx=0)
    assert stored == BlockStored(
        block_hashes=(other.hashes[1],),
        parent_block_hash=None,
        token_ids=(),
        block_size=0,
        lora_id=None,
        medium="CPU",
        lora_name=None,
        group_idx=0,
    )


def test_cpu_tier_evicts_the_tail_of_the_prompt_unused_for_longest() -> None:
    cache = make_cache(cpu_blocks=4)
    first, second = make_sequence(9), make_sequence(9, first=100)
    serve(cache, first)
    serve(cache, second)
    serve(cache, first)  # renewed, although it was found on the GPU

    removed = compute(cache, admit(cache, make_sequence(8, first=200)))[1]

    assert removed == BlockRemoved(block_hashes=tuple(reversed(second.hashes)), medium="CPU", group_idx=0)


def test_prompt_larger_than_the_cpu_tier_is_not_offloaded() -> None:
    cache = make_cache(cpu_blocks=2)
    lease = admit(cache, make_sequence(12))
    cache.extend(lease, 12)

    assert cache.offload(lease).chunks == ()


def test_sequence_waits_while_its_chunk_is_being_written_or_loaded() -> None:
    cache = make_cache(cpu_blocks=8)
    writer = admit(cache, make_sequence(8))
    cache.extend(writer, 8)
    offload = cache.offload(writer)
    cache.release(writer)
    evict_gpu(cache)

    assert cache.admit(make_sequence(9)) is Wait.DEFERRED
    cache.complete_transfer(offload)
    loading = admit(cache, make_sequence(9))
    assert cache.admit(make_sequence(9)) is Wait.DEFERRED
    cache.complete_load(loading)
    assert admit(cache, make_sequence(9)).hit == Hit(2)


def test_admission_waits_for_room_beside_what_is_promised() -> None:
    cache = make_cache(gpu_blocks=7)
    lease = admit(cache, make_sequence(16))

    assert cache.admit(make_sequence(12, first=100)) is Wait.NO_ROOM
    assert cache.extend(lease, 16) is not None
    assert admit(cache, make_sequence(8, first=100)).hit == Hit(0)


def test_extension_fails_whole_when_blocks_are_missing() -> None:
    cache = make_cache(gpu_blocks=3)
    sequence = make_sequence(8)
    lease = admit(cache, sequence)
    cache.extend(lease, 8)
    sequence.extend([1])

    assert cache.extend(lease, 1) is None
    assert (lease.n_computed, len(lease.blocks)) == (8, 2)


def test_reset_clears_the_gpu_with_an_event_and_the_cpu_without() -> None:
    cache = make_cache(cpu_blocks=8)
    serve(cache, make_sequence(8))

    assert cache.reset() == [AllBlocksCleared()]
    assert cache.lookup(make_sequence(9)) == Hit(0, 8)
    assert cache.reset(cpu=True) == [AllBlocksCleared()]
    assert cache.lookup(make_sequence(9)) == Hit(0)


def test_reset_does_nothing_when_blocks_are_in_use() -> None:
    cache = make_cache()
    lease = admit(cache, make_sequence(8))
    compute(cache, lease)

    assert cache.reset() is None
    cache.release(lease)
    assert cache.lookup(make_sequence(9)) == Hit(2)


def test_copies_under_way_at_a_reset_are_dropped() -> None:
    cache = make_cache(cpu_blocks=8)
    lease = admit(cache, make_sequence(8))
    cache.extend(lease, 8)
    offload = cache.offload(lease)
    cache.release(lease)
    cache.reset(cpu=True)

    assert cache.complete_transfer(offload) == []
