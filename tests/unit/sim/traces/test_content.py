"""Engine and index treat blocks as equal exactly if their block ids are equal."""

from __future__ import annotations

from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.sim.block_cache import BlockCache, Wait
from kvatlas.sim.errors import SimError
from kvatlas.sim.kv_events import Event, EventBatch
from kvatlas.sim.traces.content import TraceSequence, block_hashes, prompt_tokens
from kvatlas.sim.traces.trace import TraceRequest

IDS = st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)


def hashes_of(
    ids: tuple[int, ...],
    n_prompt: int,
    n_output: int = 1,
    *,
    number: int = 0,
    id_tokens: int = 8,
    block: int = 8,
) -> array[int]:
    return block_hashes(
        TraceRequest(0.0, n_prompt, n_output, ids), number, id_tokens=id_tokens, block_size=block
    )


def same(one: array[int], other: array[int]) -> int:
    n_same = 0
    while n_same < min(len(one), len(other)) and one[n_same] == other[n_same]:
        n_same += 1
    return n_same


@given(one=IDS, other=IDS, sizes=st.sampled_from([(8, 8), (8, 4), (8, 2), (4, 8)]))
def test_blocks_are_equal_as_long_as_their_ids_are(
    one: tuple[int, ...], other: tuple[int, ...], sizes: tuple[int, int]
) -> None:
    id_tokens, block = sizes
    ours = hashes_of(one, len(one) * id_tokens, number=1, id_tokens=id_tokens, block=block)
    theirs = hashes_of(other, len(other) * id_tokens, number=2, id_tokens=id_tokens, block=block)

    n_ids = same(array("Q", one), array("Q", other))
    assert same(ours, theirs) == n_ids * id_tokens // block


def test_block_that_the_prompt_does_not_fill_is_nobody_elses() -> None:
    one, other = (hashes_of((1, 2), 12, 4, number=number) for number in (1, 2))

    assert len(one) == 2
    assert same(one, other) == 1


def test_generated_blocks_are_found_again_where_their_ids_are_known() -> None:
    first = hashes_of((1, 2, 3), 12, 12, number=1)
    turn = hashes_of((1, 2, 3, 4), 32, 1, number=2)

    assert same(first, turn) == len(first) == 3


def test_blocks_that_fit_no_id_are_refused() -> None:
    with pytest.raises(SimError, match="blocks of 3 tokens do not fit block ids of 8 tokens"):
        hashes_of((1,), 8, block=3)


def test_sequence_tells_tokens_that_the_prompt_has() -> None:
    hashes = hashes_of((1, 2, 3), 20, 8)
    tokens = prompt_tokens(hashes, n_prompt=20, block_size=8)
    sequence = TraceSequence(hashes, n_prompt=20, block_size=8)

    assert len(tokens) == len(sequence) == 20
    assert msgspec.msgpack.decode(sequence.block_tokens(0, 2)) == list(tokens[:16])
    assert (len(sequence.hashes), sequence.parent(0), sequence.parent(1)) == (2, None, hashes[0])
    sequence.extend(range(4))
    assert (len(sequence), sequence.hashes) == (24, list(hashes))
    assert sequence.extra_keys(0) is None


def test_index_finds_what_the_engine_stored() -> None:
    atlas = Atlas(
        tiers=TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))]), seed=0, core=index_core()
    )
    atlas.add("server")
    cache = BlockCache(block_size=8, gpu_blocks=16, cpu_blocks=16, self_describing=False)
    hashes = hashes_of((1, 2, 3), 24)
    admitted = cache.admit(TraceSequence(hashes, n_prompt=24, block_size=8))
    assert not isinstance(admitted, Wait)
    lease, events = admitted
    events += cache.extend(lease, 24) or []
    offload = cache.offload(lease)
    publish(atlas, events)
    publish(atlas, cache.complete_transfer(offload))

    match = atlas.match(atlas.prefix(prompt_tokens(hashes_of((1, 2, 9), 24), n_prompt=24, block_size=8)))[
        "server"
    ]

    assert match.tier_blocks == {"gpu": 2, "cpu": 2}


def publish(atlas: Atlas, events: list[Event]) -> None:
    payload = msgspec.msgpack.encode(EventBatch(ts=0.0, events=tuple(events)))
    atlas.apply("server", 0, index_core().decode_batch(payload))
