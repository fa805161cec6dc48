"""Engines that compute the last matched block again, as their stores show."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvatlas.events.model import AllBlocksCleared, BlockRemoved, BlockStored, EngineHash, Event
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore
from kvatlas.indexer.recomputed import Recomputed
from support.cores import CORES
from support.engine_recordings import VLLM, Replay, atlas_of
from support.payloads import payload
from support.recording import read_frames

SIZE = 2


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> IndexCore:
    return CORES[request.param]


def store(first: int, *hashes: int, group: int = 0) -> BlockStored:
    """Return a store of blocks from number `first` on; `hashes` of a prompt are its block numbers, or others where it parts."""
    return BlockStored(
        hashes=tuple(EngineHash(1000 + each) for each in hashes),
        parent=EngineHash(999 + first) if first else None,
        tokens=array("I", [token for each in hashes for token in range(each * SIZE, each * SIZE + SIZE)]),
        block_size=SIZE,
        group=group,
    )


def dropped(atlas: Atlas) -> int:
    layout = atlas.ledger("e", 0).layout()
    assert layout is not None
    return layout.dropped


def told(core: IndexCore, *batches: Sequence[Event]) -> Atlas:
    atlas = atlas_of(core)
    for batch in batches:
        atlas.apply("e", 0, core.decode_batch(payload(batch)))
    return atlas


PROMPT = store(0, 0, 1, 2, 3)
AGAIN = (store(3, 3, 100), store(3, 3, 110))
"""Two prompts that part after the first one: each begins with its last block."""


def test_two_stores_that_begin_with_a_held_block_show_a_drafter(core: IndexCore) -> None:
    assert dropped(told(core, [PROMPT], [AGAIN[0]])) == 0
    assert dropped(told(core, [PROMPT], [AGAIN[0]], [AGAIN[1]])) == 1


def test_first_block_of_a_prompt_is_one_too(core: IndexCore) -> None:
    assert dropped(told(core, [PROMPT], [store(0, 0, 100)], [store(0, 0, 110)])) == 1


@pytest.mark.parametrize(
    "batches",
    [
        [[store(2, 2, 3)], [store(2, 2, 3)]],
        [[store(2, 2, 3, 100)], [store(2, 2, 3, 110)]],
        [[store(3, 3)], [store(3, 3)]],
        [[BlockRemoved((EngineHash(1003),)), AGAIN[0]], [BlockRemoved((EngineHash(1003),)), AGAIN[1]]],
        [[AllBlocksCleared(), AGAIN[0]], [AGAIN[1]]],
        [[store(4, 4, group=1)], [AGAIN[0]], [AGAIN[1]]],
        [[AGAIN[0]], *[[store(4, 10 * n, 10 * n + 1)] for n in range(20, 29)], [AGAIN[1]]],
    ],
    ids=[
        "all held",
        "two held",
        "one block",
        "evicted before",
        "parent gone",
        "two groups",
        "mostly continued",
    ],
)
def test_other_stores_do_not(core: IndexCore, batches: list[list[Event]]) -> None:
    assert dropped(told(core, [PROMPT], *batches)) == 0


def test_what_is_set_for_good_outweighs_stores(core: IndexCore) -> None:
    atlas = told(core, [PROMPT], *[[each] for each in AGAIN])
    ledger = atlas.ledger("e", 0)
    ledger.set_reuse(0)
    assert dropped(atlas) == 0
    ledger.set_reuse(0, is_guess=True)
    assert dropped(atlas) == 1


def test_stores_that_only_continue_held_blocks_deny_the_guess_of_metrics(core: IndexCore) -> None:
    prompts = [store(3, 100 + 10 * n, 101 + 10 * n) for n in range(16)]
    prompts = [replace(each, parent=EngineHash(1003)) for each in prompts]
    atlas = told(core, [PROMPT])
    ledger = atlas.ledger("e", 0)
    ledger.set_reuse(1, is_guess=True)
    for each in prompts[:-1]:
        atlas.apply("e", 0, core.decode_batch(payload([each])))
    assert dropped(atlas) == 1
    atlas.apply("e", 0, core.decode_batch(payload([prompts[-1]])))
    assert dropped(atlas) == 0
    ledger.set_reuse(1)
    assert dropped(atlas) == 1  # a label or answers have said so


def test_stores_that_begin_with_a_held_block_take_the_denial_back() -> None:
    seen = Recomputed()
    assert (seen.learn([False] * 16), seen.denied) == (True, True)
    assert (seen.learn([True] * 3), seen.denied) == (False, True)
    assert (seen.learn([True]), seen.denied) == (True, False)


@pytest.mark.parametrize(
    ("case", "denied"),
    [
        ("g1_gpu_sessions", True),
        ("o2_cpu_selfdesc", True),
        ("e2_eagle_drop", False),
        ("e3_eagle_offload", False),
    ],
)
def test_guess_is_denied_for_recorded_engines_without_a_drafter_alone(
    case: str, core: IndexCore, *, denied: bool
) -> None:
    atlas = atlas_of(core)
    atlas.ledger("e", 0).set_reuse(1, is_guess=True)
    for frame in read_frames(VLLM / case / "zmq.jsonl"):
        atlas.apply("e", 0, core.decode_batch(frame.parts[-1]))
    assert dropped(atlas) == int(not denied)


def test_what_stores_show_survives_a_restart_of_kvatlas_but_not_of_the_engine(core: IndexCore) -> None:
    ledger = told(core, [PROMPT], *[[each] for each in AGAIN]).ledger("e", 0)
    after = atlas_of(core)
    after.ledger("e", 0).load(ledger.dump(now=0.0), now=0.0)
    assert dropped(after) == 1
    after.ledger("e", 0).reset()
    after.apply("e", 0, core.decode_batch(payload([PROMPT])))
    assert dropped(after) == 0


def test_evidence_is_weighed_against_stores_that_continue_held_blocks() -> None:
    seen = Recomputed()
    assert not seen.learn([False] * 40 + [True] * 5)
    assert (seen.learn([True]), seen.shown) == (True, True)
    assert (seen.learn([False] * 8), seen.shown) == (False, True)
    assert (seen.learn([False]), seen.shown) == (True, False)


@pytest.mark.parametrize(("case", "wrong"), [("e2_eagle_drop", 2), ("e3_eagle_offload", 3)])
def test_recorded_engines_with_a_drafter_are_known_by_their_stores_alone(
    case: str, wrong: int, core: IndexCore
) -> None:
    replay = Replay(VLLM / case, core, dropped=None)
    assert len(replay.wrong) == wrong, replay.wrong
