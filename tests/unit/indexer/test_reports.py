"""Stores that tell again what an engine holds, and stores of the same blocks that are real copies."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from kvatlas.events.model import BlockRemoved, BlockStored, EngineHash, Event
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.tiers import TierId
from support.cores import CORES
from support.engine_recordings import atlas_of
from support.payloads import payload

N_HELD = 4


def store(first: int, n_blocks: int) -> BlockStored:
    return BlockStored(
        hashes=tuple(EngineHash(1000 + block) for block in range(first, first + n_blocks)),
        parent=EngineHash(999 + first) if first else None,
        tokens=array("I", range(2 * first, 2 * (first + n_blocks))),
        block_size=2,
    )


HELD, REPORT, NEXT = store(0, N_HELD), store(0, 3), store(3, 2)


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> IndexCore:
    return CORES[request.param]


def left_after_one_removal(core: IndexCore, *batches: Sequence[Event]) -> int:
    """Return the blocks left when every block that was ever stored is removed once."""
    atlas = atlas_of(core)
    for batch in ((HELD,), *batches):
        atlas.apply("e", 0, core.decode_batch(payload(batch)))
    stores = [event for batch in batches for event in batch if isinstance(event, BlockStored)]
    known = {each for event in (HELD, *stores) for each in event.hashes}
    atlas.apply("e", 0, core.decode_batch(payload([BlockRemoved((each,)) for each in known])))
    return atlas.ledger("e", 0).residencies(TierId(0))


def test_report_before_the_requests_own_blocks_adds_no_copy(core: IndexCore) -> None:
    assert left_after_one_removal(core, [REPORT, store(3, 1)]) == 1, (
        "only the request's own block is there twice"
    )


def test_prompt_that_is_computed_again_adds_copies(core: IndexCore) -> None:
    assert left_after_one_removal(core, [REPORT]) == 3


def test_later_report_alone_adds_no_copy(core: IndexCore) -> None:
    assert left_after_one_removal(core, [HELD, store(4, 1)], [REPORT]) == 0


@pytest.mark.parametrize("batch", [[store(4, 1), REPORT], [store(0, 2), NEXT]], ids=["second", "short"])
def test_stores_that_cannot_be_reports_add_copies(core: IndexCore, batch: list[Event]) -> None:
    assert left_after_one_removal(core, [HELD, store(4, 1)], batch) >= 2
