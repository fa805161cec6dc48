"""States built from snapshots beside the present one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.draft import RankDraft
from kvatlas.indexer.factory import CoreName
from kvatlas.indexer.holders import FASTEST
from kvatlas.indexer.tiers import TierId, TierSource, TierSpec, TierTable
from kvatlas.sim.kv_events import AllBlocksCleared, Event, EventBatch
from kvatlas.sim.snapshot import Recorder
from support.cores import CORES
from support.snapshot_publisher import BLOCK, CPU, held, removed, stored, tokens_of

TIERS = (TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",)))
CPU_TIER = TierId(1)

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "again", "copy", "evict", "drop", "clear"]), st.integers(0, 2)
    ),
    max_size=12,
)


def history(operations: Iterable[tuple[str, int]]) -> list[Event]:
    """Return what an engine publishes that computes, copies and evicts blocks of three prompts."""
    on_gpu, on_cpu, events = [0, 0, 0], [0, 0, 0], list[Event]()
    for operation, prompt in operations:
        n_blocks = on_gpu[prompt]
        if operation == "store":
            events.append(stored(prompt, n_blocks, n_blocks + 2))
            on_gpu[prompt] += 2
        elif operation == "again" and n_blocks:
            events += [stored(prompt, 0, 1), removed(prompt, 0)]
        elif operation == "copy" and n_blocks > on_cpu[prompt]:
            events.append(stored(prompt, on_cpu[prompt], n_blocks, medium=CPU))
            on_cpu[prompt] = n_blocks
        elif operation == "evict" and n_blocks:
            events.append(removed(prompt, n_blocks - 1))
            on_gpu[prompt] -= 1
        elif operation == "drop" and on_cpu[prompt]:
            events.append(removed(prompt, *range(on_cpu[prompt]), medium=CPU))
            on_cpu[prompt] = 0
        elif operation == "clear":
            events.append(AllBlocksCleared())
            on_gpu = [0, 0, 0]
    return events


def make_atlas(core: CoreName, *endpoints: str) -> Atlas:
    atlas = Atlas(tiers=TierTable(TIERS), seed=0, core=CORES[core])
    for endpoint in endpoints:
        atlas.add(endpoint)
    return atlas


def holdings(atlas: Atlas, endpoint: str) -> list[object]:
    return [each or {"gpu": 0, "cpu": 0} for each in held(atlas, endpoint, range(3), n_blocks=26)]


def apply(draft: RankDraft, core: CoreName, events: Iterable[Event]) -> None:
    payload = msgspec.msgpack.encode(EventBatch(ts=1.0, events=tuple(events)))
    for _ in draft.ledger.steps(CORES[core].decode_batch(payload)):
        pass


def tell(atlas: Atlas, core: CoreName, endpoint: str, events: Iterable[Event]) -> None:
    for event in events:
        payload = msgspec.msgpack.encode(EventBatch(ts=1.0, events=(event,)))
        atlas.apply(endpoint, 0, CORES[core].decode_batch(payload))


@pytest.mark.parametrize("core", CORES)
@settings(max_examples=25)
@given(before=OPERATIONS, operations=OPERATIONS, n_later=st.integers(0, 12))
def test_snapshot_leads_to_the_same_state_as_the_whole_stream(
    core: CoreName, before: list[tuple[str, int]], operations: list[tuple[str, int]], n_later: int
) -> None:
    atlas, recorder = make_atlas(core, "a", "all"), Recorder()
    events = history(operations)
    n_recorded = max(0, len(events) - n_later)
    tell(atlas, core, "a", history(before))
    tell(atlas, core, "all", events[:n_recorded])
    recorder.record(events[:n_recorded])
    shown = holdings(atlas, "a")
    draft = RankDraft(atlas, atlas.ledger("a", 0))
    for part in recorder.chunks():
        apply(draft, core, part)
        assert holdings(atlas, "a") == shown, "nobody sees it before the switch"
    draft.adopt(now=0.0)
    assert holdings(atlas, "a") == holdings(atlas, "all")
    for endpoint in ("a", "all"):
        tell(atlas, core, endpoint, events[n_recorded:])
    assert holdings(atlas, "a") == holdings(atlas, "all")


@pytest.mark.parametrize("core", CORES)
def test_tier_without_events_keeps_what_was_inferred(core: CoreName) -> None:
    atlas, recorder = make_atlas(core, "a"), Recorder()
    ledger = atlas.ledger("a", 0)
    tell(atlas, core, "a", [stored(0, 0, 4)])
    for now in (0.0, 10.0):
        ledger.offloads(now=now)
    tell(atlas, core, "a", [removed(0, 3, 2)])
    recorder.record([stored(1, 0, 3)])
    draft = RankDraft(atlas, ledger)
    for events in recorder.chunks():
        apply(draft, core, events)
    draft.adopt(now=20.0)
    assert ledger.sources.of(CPU_TIER) is TierSource.INFERRED
    assert (ledger.residencies(FASTEST), ledger.residencies(CPU_TIER)) == (3, 7)
    assert ledger.block_size == BLOCK
    match = atlas.match(atlas.prefix(array("I", tokens_of(0, 4))))["a"]
    assert match.tier_blocks == {"gpu": 0, "cpu": 4}


@pytest.mark.parametrize("core", CORES)
def test_shared_tier_gains_what_the_snapshot_has_only_at_the_switch(core: CoreName) -> None:
    tiers = (TIERS[0], TierSpec("cpu", ("CPU",), shared=True))
    atlas = Atlas(tiers=TierTable(tiers), seed=0, core=CORES[core])
    atlas.add("a")
    recorder = Recorder()
    recorder.record([stored(0, 0, 4), stored(0, 0, 4, medium=CPU)])
    draft = RankDraft(atlas, atlas.ledger("a", 0))
    for events in recorder.chunks():
        apply(draft, core, events)
    assert [each.residencies for each in atlas.occupancy("a")] == [0, 0]
    draft.adopt(now=0.0)
    assert [each.residencies for each in atlas.occupancy("a")] == [4, 4]
