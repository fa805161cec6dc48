"""Saved and loaded ledgers behave exactly as the originals."""

from __future__ import annotations

from array import array
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from kvatlas.events.model import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EngineHash,
    Event,
    MediumName,
)
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import REFERENCE, IndexCore, index_core
from kvatlas.indexer.holders import Place, SavedShared
from kvatlas.indexer.tiers import TierId, TierSource, TierSpec, TierTable
from support.cores import CORES
from support.payloads import payload
from support.saved_prompts import BLOCK, N_BLOCKS, ROOTS, TRUNKS, engine_hash, foreign, stored, tokens
from support.snapshots import load, saved

ENDPOINTS = {"a": 2, "b": 1}

TRUNK, FIRST = st.integers(0, TRUNKS - 1), st.integers(0, N_BLOCKS - 1)
RANK = st.sampled_from([("a", 0), ("a", 1), ("b", 0)])
RULES = st.fixed_dictionaries({"lookahead": st.sampled_from([0, 0, 0, 1, 2]), "beside": st.booleans()})
MEDIUM = st.sampled_from(["GPU", "GPU", "CPU", "CPU", "STORAGE", "TAPE", "CLOUD"])


def make_atlas(core: IndexCore, specs: tuple[TierSpec, ...]) -> Atlas:
    atlas = Atlas(tiers=TierTable(specs), seed=3, core=core)
    for name, n_ranks in ENDPOINTS.items():
        atlas.add(name, n_ranks=n_ranks)
    return atlas


SPECS = (
    TierSpec("gpu", ("GPU",), capacity=8),
    TierSpec("cpu", ("CPU",)),
    TierSpec("storage", ("STORAGE",), capacity=5, shared=True),
)


class SavedAtlas(RuleBasedStateMachine):
    """An atlas, and one loaded from its dump; both take the later steps."""

    cores: ClassVar[tuple[IndexCore, IndexCore]] = (REFERENCE, REFERENCE)
    specs: ClassVar[tuple[TierSpec, ...]] = SPECS

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.first, self.second = (make_atlas(core, self.specs) for core in self.cores)
        self.capacities: dict[str, int] = {}
        self.block_sizes: dict[tuple[str, int], int] = {}

    def apply(self, rank: tuple[str, int], event: Event) -> None:
        for atlas, core in zip((self.first, self.second), self.cores, strict=True):
            atlas.apply(*rank, core.decode_batch(payload([event])))

    @rule()
    def save_and_load(self) -> None:
        """Load the dump into a new atlas; bounds and block sizes are set again, as after a start."""
        data = saved(self.first, ENDPOINTS, now=self.now)
        self.second = make_atlas(self.cores[1], self.specs)
        load(data, self.second, now=self.now)
        for name, n_blocks in self.capacities.items():
            self.second.set_capacity(name, TierId(0), n_blocks)
        for rank, block_size in self.block_sizes.items():
            self.second.ledger(*rank).use_block_size(block_size)

    @rule(
        rank=RANK,
        trunk=TRUNK,
        first=FIRST,
        n_blocks=st.integers(1, N_BLOCKS),
        root=st.sampled_from([0, 0, 0, 1, 2]),
        medium=MEDIUM,
        told=st.sampled_from([True, True, False]),
        group=st.sampled_from([0, 0, 0, 1]),
        n_times=st.sampled_from([1, 1, 2, 3]),
        rules=RULES,
    )
    def store(
        self,
        rank: tuple[str, int],
        trunk: int,
        first: int,
        n_blocks: int,
        root: int,
        medium: str,
        told: bool,
        group: int,
        n_times: int,
        rules: dict[str, Any],
    ) -> None:
        event = stored(trunk, first, n_blocks, root=root, medium=medium, told=told, group=group, **rules)
        for _ in range(n_times):
            self.apply(rank, event)

    @rule(rank=RANK, trunk=TRUNK, chunk=st.integers(0, 2))
    def store_foreign(self, rank: tuple[str, int], trunk: int, chunk: int) -> None:
        self.apply(rank, foreign(trunk, chunk))

    @rule(
        rank=RANK,
        trunk=TRUNK,
        block=FIRST,
        root=st.sampled_from([0, 0, 1]),
        medium=MEDIUM,
        group=st.sampled_from([0, 0, 1]),
    )
    def remove(
        self, rank: tuple[str, int], trunk: int, block: int, root: int, medium: str, group: int
    ) -> None:
        self.apply(rank, BlockRemoved((engine_hash(trunk, block, root),), MediumName(medium), group))

    @rule(rank=RANK, trunk=TRUNK, chunk=st.integers(0, 2))
    def remove_foreign(self, rank: tuple[str, int], trunk: int, chunk: int) -> None:
        self.apply(rank, BlockRemoved((EngineHash(50_000 + 10 * trunk + chunk),), MediumName("CPU")))

    @rule(rank=RANK)
    def clear(self, rank: tuple[str, int]) -> None:
        self.apply(rank, AllBlocksCleared())

    @rule(rank=RANK)
    def reset(self, rank: tuple[str, int]) -> None:
        for atlas in (self.first, self.second):
            atlas.reset(*rank)
        if rank in self.block_sizes:
            self.set_block_size(rank, self.block_sizes[rank])

    @rule(rank=RANK, block_size=st.sampled_from([BLOCK, 2 * BLOCK]))
    def set_block_size(self, rank: tuple[str, int], block_size: int) -> None:
        self.block_sizes[rank] = block_size
        for atlas in (self.first, self.second):
            atlas.ledger(*rank).use_block_size(block_size)

    @rule(name=st.sampled_from([*ENDPOINTS]), trunk=TRUNK)
    def route(self, name: str, trunk: int) -> None:
        for atlas in (self.first, self.second):
            atlas.routed(name, atlas.prefix(tokens(trunk)))

    @rule(rank=RANK, seconds=st.sampled_from([1.0, 6.0]))
    def offload(self, rank: tuple[str, int], seconds: float) -> None:
        self.now += seconds
        for atlas in (self.first, self.second):
            atlas.ledger(*rank).offloads(now=self.now)

    @rule(rank=RANK)
    def have_no_events(self, rank: tuple[str, int]) -> None:
        for atlas in (self.first, self.second):
            atlas.ledger(*rank).without_events()
        self.set_block_size(rank, BLOCK)

    @rule(name=st.sampled_from([*ENDPOINTS]), n_blocks=st.integers(2, 8))
    def bound(self, name: str, n_blocks: int) -> None:
        """Bound a tier, never above its configured bound, within which ledgers are loaded before other bounds are set."""
        self.capacities[name] = n_blocks
        for atlas in (self.first, self.second):
            atlas.set_capacity(name, TierId(0), n_blocks)

    @invariant()
    def agree(self) -> None:
        for trunk in range(TRUNKS):
            for lora, salt in ROOTS:
                matches = [
                    atlas.match(atlas.prefix(tokens(trunk), lora=lora, salt=salt))
                    for atlas in (self.first, self.second)
                ]
                assert matches[0] == matches[1]
        for name, n_ranks in ENDPOINTS.items():
            assert self.first.occupancy(name) == self.second.occupancy(name)
            for rank in range(n_ranks):
                assert self.first.dump(name, rank, now=self.now) == self.second.dump(name, rank, now=self.now)
        assert self.first.dump_shared("") == self.second.dump_shared("")


class SavedNativeAtlas(SavedAtlas):
    """The same on the native core, if it was built."""

    cores = (index_core(), index_core())


class AtlasOfAnotherCore(SavedAtlas):
    """Dumps of the native core, loaded into the reference."""

    cores = (index_core(), REFERENCE)


class SavedRoutedAtlas(SavedAtlas):
    """The same for tiers with configured sources and chunks."""

    specs = (
        TierSpec("gpu", ("GPU",), source=TierSource.EVENTS),
        TierSpec("cpu", ("CPU",), capacity=6, chunk_blocks=2, source=TierSource.INFERRED),
        TierSpec("storage", ("STORAGE",), source=TierSource.EVENTS, cleared_on_reset=True),
    )


def atlas_with_everything(core: IndexCore) -> Atlas:
    """Fill an atlas with every kind of state: in the first rank of `a`, inference in `b`."""
    atlas = make_atlas(core, SPECS)
    atlas.apply("a", 0, [
        stored(0, 0, 4),
        stored(0, 1, 2), stored(0, 0, 2),  # blocks with 2, 3, 2 and 1 copies
        stored(0, 0, 3, group=1),  # a sliding window
        stored(1, 4, 2, root=2),  # parked, with its copies pending
        stored(2, 3, 1, medium="CPU", told=False),  # a pending tail
        stored(0, 3, 1, medium="CPU", told=False),  # a tail
        foreign(1, 0), foreign(1, 1),
        stored(0, 0, 2, medium="STORAGE"),
        stored(0, 0, 1, medium="TAPE"),
    ])  # fmt: skip
    atlas.apply("b", 0, [stored(0, 0, 3)])
    for now in (10.0, 20.0):
        atlas.ledger("b", 0).offloads(now=now)
    return atlas


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_everything_the_books_hold_is_saved_and_loaded(core: IndexCore) -> None:
    first, second = atlas_with_everything(core), make_atlas(core, SPECS)
    books, inferred = first.dump("a", 0, now=20.0), first.dump("b", 0, now=20.0)
    load(saved(first, ENDPOINTS, now=20.0), second, now=500.0)
    assert (second.dump("a", 0, now=0.0), second.dump("b", 0, now=500.0)) == (books, inferred)
    assert second.dump_shared("") == first.dump_shared("")
    assert second.occupancy("b") == first.occupancy("b")

    contents = dict(books.holders)
    assert len(contents[Place(TierId(0), 0)].keys) == 4
    assert len(contents[Place(TierId(0), 0)].copies) == 7
    assert {place.tier for place in contents} == {0, 1, 3}
    assert {*books.groups} == {0, 1}
    assert (len(books.hashes.hashes), len(books.hashes.parked), books.hashes.depths[3]) == (4, 1, 3)
    assert (len(books.pending.hashes), {claim.tail for claim in books.pending.kinds}) == (3, {False, True})
    assert (len(books.foreign.hashes), books.chunks.sizes, len(books.chunks.tails)) == (
        2,
        {1: 2, 2: 2, 3: 1},
        1,
    )
    assert (inferred.sources.found[TierId(1)], inferred.sources.offloading_s) == (TierSource.INFERRED, 10.0)
    assert len(first.dump_shared("")[0].keys) == 2


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_copies_beyond_the_bound_go_in_the_same_order_after_loading(core: IndexCore) -> None:
    first, second = atlas_with_everything(core), make_atlas(core, SPECS)
    load(saved(first, ENDPOINTS), second)
    for bound in (5, 4, 2):
        for atlas in (first, second):
            atlas.set_capacity("a", TierId(0), bound)
        assert first.dump("a", 0, now=0).holders == second.dump("a", 0, now=0).holders


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_copies_that_wait_are_adopted_after_loading_however_their_hash_is_learned(core: IndexCore) -> None:
    """Also if the native core learns the hash, as with the second event of a kind."""
    first, second = make_atlas(core, SPECS), make_atlas(core, SPECS)
    first.apply("a", 0, [stored(0, 0, 2), stored(0, 2, 1, medium="CPU", told=False), stored(1, 4, 1)])
    load(saved(first, ENDPOINTS), second)
    for event in (stored(2, 0, 3), stored(0, 2, 1), stored(1, 0, 4)):
        for atlas in (first, second):
            atlas.apply("a", 0, core.decode_batch(payload([event])))
    ledger = second.dump("a", 0, now=0)
    assert ledger == first.dump("a", 0, now=0)
    assert (len(ledger.pending.hashes), len(ledger.hashes.parked)) == (0, 0)


PARKED_RULES = [
    pytest.param({"lookahead": 1}, id="lookahead"),
    pytest.param({"root": 2, "beside": True}, id="salt_beside_extra_keys"),
    pytest.param({"root": 1, "lookahead": 1}, id="adapter"),
    pytest.param({"lookahead": 2, "root": 2, "beside": True}, id="both"),
]


@pytest.mark.parametrize("rules", PARKED_RULES)
@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_rules_of_hashes_last_in_saved_ledgers(core: IndexCore, rules: dict[str, Any]) -> None:
    """Blocks that waited for their parent, and blocks stored after loading, have the keys of a ledger that was not saved."""
    first, second = make_atlas(core, SPECS), make_atlas(core, SPECS)
    before = [stored(0, 0, 1, **rules), stored(1, 4, 2, **rules), stored(2, 2, 2, medium="CPU", **rules)]
    first.apply("a", 0, core.decode_batch(payload(before)))
    load(saved(first, ENDPOINTS), second)
    after = [stored(1, 0, 4, **rules)]
    for atlas in (first, second):
        atlas.apply("a", 0, core.decode_batch(payload(after)))
    lora, salt = ROOTS[int(rules.get("root", 0))]
    found = [atlas.match(atlas.prefix(tokens(1), lora=lora, salt=salt)) for atlas in (first, second)]
    assert found[0] == found[1]
    # the last block's lookahead is not part of the prompt
    assert found[0]["a"].tier_blocks["gpu"] == N_BLOCKS - bool(rules.get("lookahead"))
    assert first.dump("a", 0, now=0) == second.dump("a", 0, now=0)


def test_inferred_tier_has_no_holder_when_there_was_nothing_to_copy() -> None:
    first, second = make_atlas(REFERENCE, SPECS), make_atlas(REFERENCE, SPECS)
    for now in (0.0, 6.0):
        first.ledger("b", 0).use_block_size(BLOCK)
        first.ledger("b", 0).offloads(now=now)
    load(saved(first, ENDPOINTS, now=6), second, now=6)
    second.ledger("b", 0).use_block_size(BLOCK)
    for atlas in (first, second):
        atlas.ledger("b", 0).without_events()
    assert first.dump("b", 0, now=6) == second.dump("b", 0, now=6)


def test_shared_blocks_of_a_tier_that_is_not_shared_are_left_out() -> None:
    atlas = make_atlas(REFERENCE, SPECS)
    atlas.load_shared("", [SavedShared(tier=TierId(0), block_size=BLOCK, keys=array("Q", [1]))])
    assert (atlas.dump_shared(""), atlas.block_sizes) == ((), ())


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_chain_of_a_loaded_hash_ends_at_the_start_of_its_prompt(core: IndexCore) -> None:
    """Parents of first blocks are saved as 0, which may also be an engine's hash."""
    first, second = make_atlas(core, SPECS), make_atlas(core, SPECS)
    for each in (0, 7):
        first.apply("a", 0, [BlockStored((EngineHash(each),), None, array("I", [each, each]), BLOCK)])
    load(saved(first, ENDPOINTS), second)
    assert len(second.ledger("a", 0).hashes.table.chain(EngineHash(7), 2)) == 1


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_blocks_that_wait_at_a_told_block_size_are_saved_with_it(core: IndexCore) -> None:
    first, second = make_atlas(core, SPECS), make_atlas(core, SPECS)
    first.ledger("a", 0).use_block_size(BLOCK)
    first.apply("a", 0, core.decode_batch(payload([stored(0, 2, 2, medium="CPU")])))
    load(saved(first, ENDPOINTS), second)
    second.ledger("a", 0).use_block_size(BLOCK)
    assert second.dump("a", 0, now=0) == first.dump("a", 0, now=0)
    assert len(second.dump("a", 0, now=0).hashes.parked) == 1


@pytest.mark.slow
@pytest.mark.parametrize("machine", [SavedAtlas, SavedNativeAtlas, AtlasOfAnotherCore, SavedRoutedAtlas])
def test_loaded_books_go_on_as_those_that_were_saved(machine: type[SavedAtlas]) -> None:
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=40))
