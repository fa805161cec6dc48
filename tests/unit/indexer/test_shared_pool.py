"""One index for a pool of engines that key, drop and re-announce blocks differently, and cache libraries beside them."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.events.model import BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.cores import CORES
from support.payloads import payload

SIZE, N_BLOCKS = 2, 8
PROMPT = array("I", range(N_BLOCKS * SIZE + 1))
CPU = MediumName("CPU")


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> IndexCore:
    return CORES[request.param]


def pool(core: IndexCore, **engines: list[Event]) -> Atlas:
    """Return an index of engines that sent these events, each in a batch of its own."""
    specs = (TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU", "CPU_PINNED")))
    atlas = Atlas(tiers=TierTable(specs), seed=0, core=core)
    for name, events in engines.items():
        atlas.add(name)
        for event in events:
            atlas.apply(name, 0, core.decode_batch(payload([event])))
    return atlas


def usable(atlas: Atlas, prompt: array[int] = PROMPT, *, salt: str | None = None) -> dict[str, int]:
    matches = atlas.match(atlas.prefix(prompt, salt=salt))
    return {name: match.usable_blocks for name, match in matches.items()}


def store(n_blocks: int, *, first: int = 0, chunk: int = 1, **more: object) -> BlockStored:
    """Build the store of consecutive blocks, or of larger ones of a cache library."""
    size = SIZE * chunk
    fields: dict[str, object] = {
        "hashes": tuple(EngineHash(1000 * chunk + each) for each in range(first, first + n_blocks)),
        "parent": EngineHash(1000 * chunk + first - 1) if first else None,
        "tokens": PROMPT[first * size : (first + n_blocks) * size],
        "block_size": size,
    }
    return BlockStored(**fields | more)  # type: ignore[arg-type]


def test_engines_with_and_without_lookahead_match_the_same_prompt(core: IndexCore) -> None:
    with_drafter = store(N_BLOCKS, lookahead=PROMPT[-1:])
    atlas = pool(core, plain=[store(N_BLOCKS)], drafter=[with_drafter], dropping=[store(N_BLOCKS)])
    atlas.ledger("dropping", 0).set_reuse(1)

    assert usable(atlas) == {"plain": 8, "drafter": 8, "dropping": 7}
    cut = PROMPT[: 4 * SIZE + 1]
    cut[-1] = 99  # parts at a block boundary
    assert usable(atlas, cut) == {"plain": 4, "drafter": 3, "dropping": 3}


def test_salts_of_either_form_are_one_key(core: IndexCore) -> None:
    vllm = store(N_BLOCKS, extra_keys=(("s",), *[None] * (N_BLOCKS - 1)))
    atlas = pool(core, vllm=[vllm], sglang=[store(N_BLOCKS, salt="s")], plain=[store(N_BLOCKS)])

    assert usable(atlas, salt="s") == {"vllm": 8, "sglang": 8, "plain": 0}
    assert usable(atlas) == {"vllm": 0, "sglang": 0, "plain": 8}


def test_chunks_of_a_cache_library_are_blocks_of_its_engine_alone(core: IndexCore) -> None:
    chunks = store(2, chunk=4, medium=CPU)
    gone = BlockRemoved(tuple(EngineHash(each) for each in range(1000, 1000 + N_BLOCKS)))
    resync = BlockRemoved((EngineHash(4000), EngineHash(4001)), CPU)
    both: list[Event] = [store(N_BLOCKS), chunks, gone]
    atlas = pool(
        core, lmcache=both, withdrawn=[*both, resync, store(1, chunk=4, medium=CPU)], plain=[store(3)]
    )

    assert usable(atlas) == {"lmcache": 8, "withdrawn": 4, "plain": 3}


def test_objects_of_a_store_arrive_and_leave_one_by_one(core: IndexCore) -> None:
    """Connectors of a store (UMBP, the simple CPU offload) send an event per block, and one without tokens for a part of one."""
    blocks: list[Event] = [store(1, first=each, medium=CPU) for each in range(N_BLOCKS)]
    part = BlockStored((EngineHash(77),), EngineHash(1000), array("I"), 0, CPU)
    removed = BlockRemoved((EngineHash(1005),), CPU)
    gone = BlockRemoved(tuple(EngineHash(each) for each in range(1000, 1000 + N_BLOCKS)))
    atlas = pool(core, umbp=[store(N_BLOCKS), *blocks, part, removed, gone])

    assert usable(atlas) == {"umbp": 5}


def test_pinned_host_memory_of_sglang_knows_no_chunks(core: IndexCore) -> None:
    pinned = MediumName("CPU_PINNED")
    events: list[Event] = [store(3, medium=pinned), store(3, first=3, medium=pinned)]
    gone = BlockRemoved(tuple(EngineHash(each) for each in range(1000, 1006)))
    atlas = pool(core, sglang=[store(6), *events, gone, BlockRemoved((EngineHash(1005),), pinned)])

    found = atlas.match(atlas.prefix(PROMPT))["sglang"]
    assert (found.tier_blocks["cpu"], found.usable_blocks) == (5, 5)
