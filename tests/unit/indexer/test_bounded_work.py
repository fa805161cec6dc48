"""What one event can cause is bounded, whatever it names."""

from __future__ import annotations

from array import array
from itertools import pairwise

import msgspec
import pytest

from kvatlas.events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event, MediumName
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.chunks import MAX_CHUNK_BLOCKS, MAX_TAILS, Chunks
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.groups import MAX_CHANGES
from kvatlas.indexer.holders import Place
from kvatlas.indexer.ledger import RankLedger
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable
from support.cores import CORES
from support.payloads import payload

BLOCK = 2
GPU, CPU = MediumName("GPU"), MediumName("CPU")
TIERS = [TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))]


@pytest.fixture(params=CORES.values(), ids=list(CORES))
def core(request: pytest.FixtureRequest) -> IndexCore:
    found: IndexCore = request.param
    return found


@pytest.fixture
def ledger(core: IndexCore) -> RankLedger:
    atlas = Atlas(tiers=TierTable(TIERS), seed=7, core=core)
    atlas.add("e")
    return atlas.ledger("e", 0)


def chain(n_blocks: int, first: int = 1) -> BlockStored:
    tokens = array("I", range(first * BLOCK, (first + n_blocks) * BLOCK))
    return BlockStored(tuple(map(EngineHash, range(first, first + n_blocks))), None, tokens, BLOCK)


def bare(*hashes: int, medium: MediumName = CPU, group: int = 0) -> BlockStored:
    return BlockStored(tuple(map(EngineHash, hashes)), None, array("I"), 0, medium, group=group)


def cost(ledger: RankLedger, core: IndexCore, events: list[Event]) -> int:
    """Apply events as one message; return the work that it took, and check that it came in small steps."""
    costs = list(ledger.steps(core.decode_batch(payload(events))))
    assert max(costs, default=0) <= 20_000
    return sum(costs)


def held(ledger: RankLedger, tier: int) -> int:
    return ledger.residencies(TierId(tier))


def test_end_of_a_long_chain_stands_for_a_bounded_chunk(ledger: RankLedger, core: IndexCore) -> None:
    ledger.apply(chain(20_000))
    assert cost(ledger, core, [bare(20_000) for _ in range(300)]) < 40 * 300
    assert held(ledger, 1) == MAX_CHUNK_BLOCKS


def test_configured_chunk_is_not_bounded(core: IndexCore) -> None:
    atlas = Atlas(tiers=TierTable([TIERS[0], TierSpec("cpu", ("CPU",), chunk_blocks=500)]), seed=7, core=core)
    atlas.add("e")
    atlas.apply("e", 0, [chain(1000), bare(1000)])
    assert held(atlas.ledger("e", 0), 1) == 500


def test_chunk_is_stored_with_its_first_copy_and_removed_with_its_last(ledger: RankLedger) -> None:
    removal = BlockRemoved((EngineHash(8),), CPU)
    ledger.apply(chain(8))
    steps: list[tuple[Event, int]] = [
        (bare(8, 8), 8), (bare(8), 8), (removal, 8), (removal, 8), (removal, 0)
    ]  # fmt: skip
    for event, n_held in steps:
        ledger.apply(event)
        assert held(ledger, 1) == n_held


def test_correction_of_chunks_comes_in_small_steps(ledger: RankLedger, core: IndexCore) -> None:
    ledger.apply(chain(40_960))
    ledger.apply(bare(*range(256, 40_961, 256)))
    assert held(ledger, 1) == 40_960
    cost(ledger, core, [bare(64)])
    assert held(ledger, 1) == 161 * 64


def test_tails_are_bounded_over_all_groups(ledger: RankLedger) -> None:
    chunks = Chunks(TierTable(TIERS), ledger.hashes, on_change=lambda: None)
    for group in range(3):
        for number in range(30_000):
            chunks.add_tail(Place(TierId(1), group), EngineHash(number), 1)
    assert sum(len(tails.hashes) for tails in chunks.dump().tails) == MAX_TAILS
    chunks.clear(TierId(1))
    assert chunks.add_tail(Place(TierId(1), 0), EngineHash(1), 1)
    assert len(chunks.dump().tails[0].hashes) == 1


def test_resets_do_not_look_at_what_waits_in_other_tiers(ledger: RankLedger, core: IndexCore) -> None:
    ledger.apply(chain(1))
    ledger.apply(bare(*range(1000, 31_000)))
    pair: list[Event] = [bare(7, medium=GPU), AllBlocksCleared()]
    assert cost(ledger, core, pair * 1000) < 100_000
    assert ledger.n_pending == 30_000


def test_reset_drops_what_waits_in_steps(ledger: RankLedger) -> None:
    ledger.apply(chain(1))
    ledger.apply(bare(*range(1000, 31_000), medium=GPU))
    left = [ledger.n_pending for _ in ledger.steps([AllBlocksCleared()])]
    assert left[-1] == 0
    assert all(before - after <= 256 for before, after in pairwise([30_000, *left]))


def test_publisher_may_be_forgotten_between_the_steps_of_a_reset(ledger: RankLedger) -> None:
    ledger.apply(chain(1))
    ledger.apply(bare(*range(1000, 3000), medium=GPU))
    steps = ledger.steps([AllBlocksCleared()])
    next(steps)
    ledger.reset()
    list(steps)
    assert ledger.n_pending == 0


def test_copies_that_wait_in_a_cleared_tier_are_dropped_and_others_kept(ledger: RankLedger) -> None:
    ledger.apply(chain(1))
    for event in (bare(7, medium=GPU), bare(7), bare(8, medium=GPU), bare(9), bare(9, medium=GPU)):
        ledger.apply(event)
    ledger.apply(BlockRemoved((EngineHash(9),), GPU))
    ledger.apply(AllBlocksCleared())
    assert ledger.n_pending == 2
    ledger.apply(chain(3, first=7))
    assert (held(ledger, 0), held(ledger, 1)) == (3, 2)


def test_changes_of_groups_are_bounded(ledger: RankLedger) -> None:
    n_layouts = 0
    seen = ledger.layout()
    for number in range(2 * MAX_CHANGES):
        ledger.apply(
            BlockStored((EngineHash(1),), None, array("I", [1, 2]), BLOCK, kind="sliding_window", window=number + 1)
        )  # fmt: skip
        n_layouts, seen = n_layouts + (ledger.layout() is not seen), ledger.layout()
    assert n_layouts <= MAX_CHANGES + 1


@pytest.mark.skipif("native" not in CORES, reason="the core applies events itself")
@pytest.mark.parametrize("field", ["medium", "window"])
def test_media_and_windows_do_not_pile_up(field: str) -> None:
    core = CORES["native"]
    atlas = Atlas(tiers=TierTable(TIERS), seed=7, core=core)
    atlas.add("e")
    ledger, costs = atlas.ledger("e", 0), list[int]()
    for first in range(0, 3000, 1000):
        events = [
            BlockStored(
                (EngineHash(1),), None, array("I", [1, 2]), BLOCK,
                medium=MediumName(f"M{number}") if field == "medium" else GPU,
                window=number if field == "window" else None,
            )
            for number in range(first, first + 1000)
        ]  # fmt: skip
        costs.append(cost(ledger, core, list(events)))
    assert all(later <= earlier for earlier, later in pairwise(costs))


def test_waiting_copies_of_one_hash_are_adopted_in_small_steps(ledger: RankLedger, core: IndexCore) -> None:
    ledger.apply(chain(1))
    for _ in range(3):
        ledger.apply(bare(*[9] * 10_000, medium=GPU))
    cost(ledger, core, [chain(1, first=9)])
    ((_, contents),) = ledger.dump(now=0).holders
    assert sorted(contents.copies) == [contents.keys[0]] * 30_001


def test_foreign_chunks_are_bounded(ledger: RankLedger) -> None:
    ledger.apply(chain(1))
    size = 70_000 * BLOCK
    ledger.apply(BlockStored((EngineHash(5),), None, array("I", bytes(4 * size)), size, CPU))
    assert (ledger.counters.foreign_orphans, held(ledger, 1)) == (1, 0)


def test_steps_that_are_left_out_leave_a_usable_ledger(ledger: RankLedger, core: IndexCore) -> None:
    events: list[Event] = [bare(*range(1, 1000)), chain(2000), bare(*range(256, 2001, 256)), bare(64)]
    total = len(list(ledger.steps(core.decode_batch(payload(events)))))
    for end in range(0, total, 29):
        ledger.reset()
        for _ in zip(range(end), ledger.steps(core.decode_batch(payload(events))), strict=False):
            pass
        ledger.apply(BlockRemoved(tuple(map(EngineHash, range(1, 2001))), CPU))
        ledger.apply(AllBlocksCleared())
        ledger.apply(chain(10))
        assert held(ledger, 0) == 10


def test_tokens_of_one_byte_hashes_are_bounded(core: IndexCore) -> None:
    payload = msgspec.msgpack.encode([1.0, [["BlockRemoved", [1] * 65_537], ["BlockRemoved", [1] * 65_536]]])
    batch = core.decode_batch(payload)
    assert (len(batch), batch.rejected) == (1, ("too_many_hashes",))
