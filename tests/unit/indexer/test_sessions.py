"""The sessions that stored a publisher's blocks."""

from __future__ import annotations

from array import array
from typing import cast

import msgspec
import pytest

from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import CoreName
from kvatlas.indexer.sessions import MAX_STARTS, SessionBlocks, Sessions
from kvatlas.indexer.tiers import TierSpec, TierTable
from support.cores import CORES

BLOCK = 4


def stored(first: int, end: int, session: object = None, *, branch: int = 0) -> dict[str, object]:
    """Return the event that stores blocks of a prompt that leaves the main one at its block 2 if `branch` is set."""
    hashes = [1 + block + (1000 * branch if block >= 2 else 0) for block in range(end)]
    tokens = [
        block * BLOCK + i + (500 * branch if block >= 2 else 0) for block in range(end) for i in range(BLOCK)
    ]
    event: dict[str, object] = {
        "type": "BlockStored", "block_hashes": hashes[first:], "parent_block_hash": hashes[first - 1] if first else None,
        "token_ids": tokens[first * BLOCK :], "block_size": BLOCK, "lora_id": None, "medium": "GPU", "lora_name": None,
    }  # fmt: skip
    return event if session is None else event | {"session_id": session}


def prompt(n_blocks: int, *, branch: int = 0) -> array[int]:
    return array("I", cast("list[int]", stored(0, n_blocks, branch=branch)["token_ids"]))


def told(core: CoreName, *events: dict[str, object]) -> Atlas:
    """Return an atlas that has got the events, each in a batch of its own."""
    atlas = Atlas(tiers=TierTable((TierSpec("gpu", ("GPU",)),)), seed=0, core=CORES[core])
    atlas.add("e")
    for event in events:
        atlas.apply("e", 0, CORES[core].decode_batch(msgspec.msgpack.encode([1.0, [event], 0])))
    return atlas


def sessions_of(atlas: Atlas, n_blocks: int, *, branch: int = 0) -> list[SessionBlocks]:
    keys = atlas.prefix(prompt(n_blocks, branch=branch)).keys(BLOCK)
    return atlas.ledger("e", 0).sessions.of(keys)


@pytest.mark.parametrize("core", CORES)
def test_each_turn_belongs_to_the_session_that_stored_it(core: CoreName) -> None:
    atlas = told(
        core,
        stored(0, 2, "a"),
        stored(2, 5, "a"),
        stored(2, 4, "b", branch=1),
        stored(5, 6),
        stored(6, 7, "c"),
    )
    assert sessions_of(atlas, 7) == [("a", 5), (None, 1), ("c", 1)]
    assert sessions_of(atlas, 4, branch=1) == [("a", 2), ("b", 2)]


@pytest.mark.parametrize("core", CORES)
def test_stream_without_sessions_keeps_nothing(core: CoreName) -> None:
    atlas = told(core, stored(0, 2), stored(2, 5), stored(5, 6))
    assert not atlas.ledger("e", 0).sessions
    assert sessions_of(atlas, 6) == []


@pytest.mark.parametrize(
    "session", [7, "x" * 257, "", ["a"], {"a": 1}], ids=["number", "long", "empty", "list", "map"]
)
@pytest.mark.parametrize("core", CORES)
def test_session_that_is_no_short_text_changes_nothing_about_the_blocks(
    core: CoreName, session: object
) -> None:
    atlas = told(core, stored(0, 2), stored(2, 4, session), stored(4, 5, session))
    assert atlas.match(atlas.prefix(prompt(5)))["e"].tier_blocks == {"gpu": 5}
    assert sessions_of(atlas, 5) == []


@pytest.mark.parametrize("core", CORES)
def test_new_life_has_no_sessions(core: CoreName) -> None:
    atlas = told(core, stored(0, 2, "a"), stored(2, 4, "\u00fc"))
    assert sessions_of(atlas, 4) == [("a", 2), ("\u00fc", 2)]
    atlas.reset("e", 0)
    assert not atlas.ledger("e", 0).sessions


def test_oldest_stores_are_forgotten_past_the_limit() -> None:
    sessions = Sessions()
    for key in range(MAX_STARTS + 2):
        sessions.note(key, "a")
    sessions.note(2, "b")
    assert sessions.of([1]) == [(None, 1)]
    assert sessions.of([2, 3]) == [("b", 1), ("a", 1)]
