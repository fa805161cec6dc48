"""A block size from metrics is used until events show one, and stores nothing that events could contradict."""

from __future__ import annotations

from array import array

import pytest

from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierId, TierSource, TierSpec, TierTable
from support.cores import CORES
from support.payloads import payload

BLOCK, OTHER = 4, 8
TOKENS = array("I", range(4 * OTHER))
SPECS = (TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",)), TierSpec("disk", ("FS",), shared=True))
ROUTED = (TierSpec("gpu", ("GPU",), source=TierSource.ROUTING), *SPECS[1:])


def store(n_blocks: int = 4, *, medium: str = "GPU", size: int = BLOCK, base: int = 0) -> BlockStored:
    """Build the store event of the first blocks; `base` separates the hashes of engines."""
    hashes = tuple(EngineHash(base + number) for number in range(1, n_blocks + 1))
    return BlockStored(hashes, None, TOKENS[: n_blocks * size], size, MediumName(medium))


@pytest.fixture(params=CORES.values(), ids=list(CORES))
def core(request: pytest.FixtureRequest) -> IndexCore:
    found = request.param
    assert isinstance(found, IndexCore)
    return found


@pytest.fixture
def atlas(core: IndexCore) -> Atlas:
    return make_atlas(core, SPECS)


def make_atlas(core: IndexCore, specs: tuple[TierSpec, ...]) -> Atlas:
    atlas = Atlas(tiers=TierTable(specs), seed=0, core=core)
    atlas.add("e", n_ranks=2)
    return atlas


def tell(atlas: Atlas, core: IndexCore, *events: BlockStored, endpoint: str = "e") -> None:
    atlas.apply(endpoint, 0, core.decode_batch(payload(events)))


def told(atlas: Atlas, block_size: int) -> None:
    for ledger in atlas.ledgers("e"):
        ledger.use_block_size(block_size)


def held(atlas: Atlas, endpoint: str = "e") -> tuple[int, dict[str, int]]:
    """Return the block size, and blocks of the prompt by tier."""
    found = atlas.match(Prefix(TOKENS))[endpoint]
    return found.block_size, found.tier_blocks


def test_told_size_counts_until_events_show_another(atlas: Atlas, core: IndexCore) -> None:
    assert atlas.match(Prefix(TOKENS)) == {}
    told(atlas, OTHER)
    assert held(atlas) == (OTHER, {"gpu": 0, "cpu": 0, "disk": 0})

    tell(atlas, core, store())

    assert held(atlas) == (BLOCK, {"gpu": 4, "cpu": 0, "disk": 0})
    assert [ledger.block_size for ledger in atlas.ledgers("e")] == [BLOCK, OTHER], (
        "the other rank told nothing"
    )
    assert atlas.ledger("e", 0).counters.block_size_mismatches == 0


def test_size_that_events_have_shown_stays_when_another_is_told(atlas: Atlas, core: IndexCore) -> None:
    tell(atlas, core, store())
    told(atlas, OTHER)

    assert held(atlas) == (BLOCK, {"gpu": 4, "cpu": 0, "disk": 0})


def test_indexes_of_sizes_that_were_told_before_do_not_stay(atlas: Atlas) -> None:
    for block_size in range(1, 50):
        told(atlas, block_size)
        held(atlas)

    assert atlas.block_sizes == (49,)


def test_new_life_goes_by_what_was_told_last(atlas: Atlas, core: IndexCore) -> None:
    told(atlas, BLOCK)
    tell(atlas, core, store())
    told(atlas, OTHER)

    atlas.reset("e", 0)
    assert held(atlas) == (OTHER, {"gpu": 0, "cpu": 0, "disk": 0})
    tell(atlas, core, store(size=2))
    assert held(atlas)[0] == 2


def test_slower_tier_is_read_by_a_told_size(atlas: Atlas, core: IndexCore) -> None:
    told(atlas, BLOCK)
    tell(atlas, core, store(2, medium="CPU"))
    assert held(atlas) == (BLOCK, {"gpu": 0, "cpu": 2, "disk": 0})
    assert atlas.dump("e", 0, now=0.0).block_size is None, "nothing certain is known"

    tell(atlas, core, store(2))

    assert held(atlas) == (BLOCK, {"gpu": 2, "cpu": 2, "disk": 0})


def test_chunks_of_several_told_blocks_are_a_library_s_until_the_told_size_is_wrong(
    atlas: Atlas, core: IndexCore
) -> None:
    told(atlas, BLOCK)
    tell(atlas, core, store(2, medium="CPU", size=2 * BLOCK))
    assert held(atlas) == (BLOCK, {"gpu": 0, "cpu": 4, "disk": 0})

    tell(atlas, core, store(2, size=2 * BLOCK))

    assert held(atlas) == (2 * BLOCK, {"gpu": 2, "cpu": 0, "disk": 0})


def test_slower_tier_is_not_read_by_a_size_that_does_not_fit_the_told_one(
    atlas: Atlas, core: IndexCore
) -> None:
    told(atlas, 2 * BLOCK)
    tell(atlas, core, store(2, medium="CPU"))
    ledger = atlas.ledger("e", 0)
    assert (ledger.residencies(TierId(1)), ledger.n_pending) == (0, 2)

    tell(atlas, core, store(2))

    assert held(atlas) == (BLOCK, {"gpu": 2, "cpu": 2, "disk": 0})


@pytest.mark.parametrize("shown_by", ["metrics", "events"])
def test_blocks_read_by_a_told_size_go_when_it_was_wrong(
    atlas: Atlas, core: IndexCore, shown_by: str
) -> None:
    told(atlas, BLOCK)
    tell(atlas, core, store(2, medium="CPU"))

    if shown_by == "metrics":
        told(atlas, OTHER)
        assert held(atlas) == (OTHER, {"gpu": 0, "cpu": 0, "disk": 0})
    tell(atlas, core, store(2, size=2 * BLOCK))

    assert held(atlas) == (2 * BLOCK, {"gpu": 2, "cpu": 0, "disk": 0})


def test_copies_that_wait_are_adopted_after_the_told_size_was_wrong(atlas: Atlas, core: IndexCore) -> None:
    told(atlas, OTHER)
    waiting = tuple(EngineHash(each) for each in (3, 4))
    tell(atlas, core, BlockStored(waiting, None, array("I"), 0, MediumName("CPU")))
    tell(atlas, core, store(1))
    tell(atlas, core, BlockStored((EngineHash(2),), EngineHash(1), TOKENS[BLOCK : 2 * BLOCK], BLOCK))
    tell(atlas, core, BlockStored(waiting, EngineHash(2), TOKENS[2 * BLOCK : 4 * BLOCK], BLOCK))

    assert atlas.ledger("e", 0).residencies(TierId(1)) == 2


def test_shared_tier_is_there_for_an_endpoint_before_its_first_event(atlas: Atlas, core: IndexCore) -> None:
    atlas.add("other")
    tell(atlas, core, store(base=100), store(3, medium="FS", base=100), endpoint="other")

    told(atlas, BLOCK)

    assert held(atlas) == (BLOCK, {"gpu": 0, "cpu": 0, "disk": 3})


def test_told_size_is_not_saved(atlas: Atlas) -> None:
    told(atlas, BLOCK)
    atlas.ledger("e", 0).offloads(now=0.0)
    atlas.ledger("e", 0).offloads(now=10.0)

    books = atlas.dump("e", 0, now=10.0)

    assert (books.block_size, books.holders) == (None, ())


@pytest.mark.parametrize("by_configuration", [False, True])
def test_told_size_stays_where_blocks_are_learned_from_routing(
    core: IndexCore, by_configuration: bool
) -> None:
    atlas = make_atlas(core, ROUTED if by_configuration else SPECS)
    if not by_configuration:
        for ledger in atlas.ledgers("e"):
            ledger.without_events()
    told(atlas, BLOCK)
    atlas.routed("e", Prefix(TOKENS))

    told(atlas, OTHER)

    assert held(atlas) == (BLOCK, {"gpu": 8, "cpu": 0, "disk": 0})


def test_size_told_before_an_endpoint_turns_out_to_have_no_events_is_certain(atlas: Atlas) -> None:
    told(atlas, BLOCK)
    for ledger in atlas.ledgers("e"):
        ledger.without_events()
    atlas.routed("e", Prefix(TOKENS))

    assert atlas.dump("e", 0, now=0.0).block_size == BLOCK
    assert held(atlas) == (BLOCK, {"gpu": 8, "cpu": 0, "disk": 0})


@pytest.mark.parametrize("by_configuration", [False, True])
def test_assumed_size_counts_where_blocks_are_learned_from_routing_until_one_is_told(
    core: IndexCore, by_configuration: bool
) -> None:
    atlas = Atlas(tiers=TierTable(ROUTED if by_configuration else SPECS), seed=0, core=core)
    atlas.assumed_block_size = BLOCK
    atlas.add("e")
    ledger = atlas.ledger("e", 0)
    if not by_configuration:
        assert ledger.block_size is None, "events may show another"
        ledger.without_events()
    atlas.routed("e", Prefix(TOKENS))
    assert held(atlas) == (BLOCK, {"gpu": 8, "cpu": 0, "disk": 0})

    ledger.use_block_size(OTHER)
    assert held(atlas) == (OTHER, {"gpu": 0, "cpu": 0, "disk": 0})
    atlas.routed("e", Prefix(TOKENS))

    atlas.reset("e", 0)
    assert ledger.block_size == BLOCK


def test_blocks_of_an_assumed_size_are_saved_and_another_may_still_be_told(core: IndexCore) -> None:
    def learning() -> Atlas:
        atlas = Atlas(tiers=TierTable(ROUTED), seed=0, core=core)
        atlas.assumed_block_size = BLOCK
        atlas.add("e")
        return atlas

    before = learning()
    before.routed("e", Prefix(TOKENS))
    after = learning()
    after.load("e", 0, before.dump("e", 0, now=0.0), now=0.0)
    assert held(after) == (BLOCK, {"gpu": 8, "cpu": 0, "disk": 0})

    after.ledger("e", 0).use_block_size(OTHER)

    assert held(after) == (OTHER, {"gpu": 0, "cpu": 0, "disk": 0})
