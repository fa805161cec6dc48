"""Recordings of a real vLLM: the index holds at the end the same blocks as a naive replay of the events."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import cast

import pytest

from kvatlas.events.wire import decode_batch
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE, IndexCore, index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.oracle import NaiveEngine
from support.recording import read_frames, read_truth

MEDIA = {0: "GPU", 1: "CPU", 2: "STORAGE"}


@pytest.fixture(params=[REFERENCE, index_core()], ids=lambda core: core.name)
def core(request: pytest.FixtureRequest) -> IndexCore:
    return cast("IndexCore", request.param)


def make_atlas(core: IndexCore, n_ranks: int = 1) -> Atlas:
    specs = [TierSpec(medium.lower(), (medium,)) for medium in MEDIA.values()]
    atlas = Atlas(tiers=TierTable(specs), seed=0, core=core)
    atlas.add("e", n_ranks=n_ranks)
    return atlas


@pytest.mark.parametrize(
    ("run", "chunk_blocks", "full_group"),
    [("run1", 1, 0), ("run3", 2, 0), ("run4", 2, 0), ("run5", 1, 0), ("run6", 1, 1), ("run8", 1, 0)],
)
def test_final_residencies_equal_a_naive_replay(
    core: IndexCore, run: str, chunk_blocks: int, full_group: int, golden: Path
) -> None:
    atlas, naive = make_atlas(core), NaiveEngine(chunk_blocks=chunk_blocks)
    for frame in read_frames(golden / f"{run}_zmq.jsonl"):
        events = decode_batch(frame.parts[2]).events
        atlas.apply("e", 0, core.decode_batch(frame.parts[2]))
        naive.take(events)
    ledger = atlas.ledger("e", 0)
    assert naive.held("GPU", full_group)
    for tier, medium in MEDIA.items():
        groups = {group for m, group in naive.copies if m == medium}
        held = {group: naive.held(medium, group) for group in groups}
        assert ledger.residencies(TierId(tier)) == sum(map(len, held.values())), medium
    assert (ledger.n_pending, ledger.hashes.n_parked, ledger.counters.unknown_removals) == (0, 0, 0)


@pytest.mark.parametrize("run", ["run1", "run3", "run4", "run5", "run8"])
def test_every_held_chain_of_plain_prompts_is_found_by_its_tokens(
    core: IndexCore, run: str, golden: Path
) -> None:
    """Leave out salted and adapter prompts, which have the same tokens as plain ones."""
    atlas, naive = make_atlas(core), NaiveEngine()
    special: set[int] = set()
    for frame in read_frames(golden / f"{run}_zmq.jsonl"):
        events = decode_batch(frame.parts[2]).events
        atlas.apply("e", 0, core.decode_batch(frame.parts[2]))
        naive.take(events)
        for event in events:
            extras = getattr(event, "extra_keys", None) or ()
            if any(extras) or getattr(event, "parent", None) in special:
                special.update(getattr(event, "hashes", ()))
    plain = naive.held("GPU") - special
    found = 0
    for engine_hash in plain:
        chain = [engine_hash]
        while (before := naive.parent[chain[-1]]) is not None:
            chain.append(before)
        if all(link in plain for link in chain):
            match = atlas.match(Prefix(array("I", naive.prompt[engine_hash])))["e"]
            assert match.tier_blocks["gpu"] == len(chain)
            found += 1
    assert found > 0


def test_data_parallel_ranks_are_kept_apart(core: IndexCore, golden: Path) -> None:
    atlas = make_atlas(core, n_ranks=2)
    frames = read_frames(golden / "run7_dp_zmq.jsonl")
    addresses = sorted({frame.endpoint for frame in frames})
    naive = {rank: NaiveEngine() for rank in (0, 1)}
    for frame in frames:
        batch = decode_batch(frame.parts[2])
        rank = addresses.index(frame.endpoint)
        assert batch.rank == rank
        atlas.apply("e", rank, core.decode_batch(frame.parts[2]))
        naive[rank].take(batch.events)
    for rank, engine in naive.items():
        assert atlas.ledger("e", rank).residencies(TierId(0)) == len(engine.held("GPU")) > 0


def test_run8_usable_prefix_equals_cached_tokens_in_process(core: IndexCore, golden: Path) -> None:
    atlas = make_atlas(core)
    frames = read_frames(golden / "run8_zmq.jsonl")
    wrong: list[int] = []
    requests = read_truth(golden / "run8_truth.jsonl")
    for request in requests:
        while frames and frames[0].received_at <= request.t0:
            atlas.apply("e", 0, core.decode_batch(frames.pop(0).parts[2]))
        lora = None if request.model == "tiny" else request.model
        prefix = Prefix(array("I", request.tokens), lora=lora, salt=request.salt)
        matches = atlas.match(prefix)
        if (matches["e"].usable_tokens if matches else 0) != request.cached_tokens:
            wrong.append(request.i)
    assert (len(requests), wrong) == (150, [])
