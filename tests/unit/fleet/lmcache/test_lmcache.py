"""Batches of LMCache's servers: read, put in order, and applied to the endpoints that load from them."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.rest.errors import install_error_handlers
from kvatlas.api.rest.lmcache import lmcache_routes
from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.lmcache.batches import (
    CacheBatch,
    ChunkKey,
    Entry,
    Gate,
    LmcacheError,
    events_of,
    read_batches,
)
from kvatlas.fleet.lmcache.publishers import EVENTS_PER_TURN, LmcachePublishers
from kvatlas.fleet.roster import wanted_endpoints
from kvatlas.indexer.prefix import Prefix
from support.fleets import make_endpoint, make_fleet, with_endpoints

GOLDEN = Path(__file__).parents[3] / "golden" / "other-publishers"
BLOCK = 16
PROMPT = array("I", range(3, 3 + 512))
TIERS = [
    {"name": "gpu", "media": ["GPU"]},
    {"name": "cpu", "media": ["LMCACHE-L1"]},
    {"name": "pool", "media": ["LMCACHE-L2-FS"], "scope": "shared"},
]


def recorded() -> dict[str, Any]:
    lines = [json.loads(line) for line in (GOLDEN / "lmcache-0.5.6.jsonl").read_text().splitlines()]
    return next(cast("dict[str, Any]", line["decoded"]) for line in lines if "coordinator" in line["engine"])


def batch(
    seq: int, *, kind: Any = "store", incarnation: int = 1, entries: list[Entry] | None = None, **more: Any
) -> CacheBatch:
    return CacheBatch("mp-0", incarnation, seq, kind, "l1", "dram", entries or [], **more)


def entry(number: int, *, offset: int | None = None, n_tokens: int = 64, **more: Any) -> Entry:
    tokens = PROMPT[number * n_tokens : (number + 1) * n_tokens].tolist()
    key = ChunkKey(f"{number + 1:064x}", "m", **more)
    return Entry(key, 1000, tokens, number * n_tokens if offset is None else offset)


# -- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "wanted"),
    [
        pytest.param([(1, 1), (1, 2)], ["applied", "applied"], id="in_order"),
        pytest.param([(1, 1), (1, 1)], ["applied", "duplicates"], id="twice"),
        pytest.param([(1, 5), (1, 4)], ["applied", "duplicates"], id="late"),
        pytest.param([(2, 1), (1, 9)], ["applied", "stale"], id="of_a_former_life"),
        pytest.param([(1, 7), (2, 1)], ["applied", "applied"], id="restart"),
    ],
)
def test_batches_are_fenced_by_life_and_number(sent: list[tuple[int, int]], wanted: list[str]) -> None:
    gate = Gate()
    assert [gate.judge(batch(seq, incarnation=life)).outcome for life, seq in sent] == wanted


def test_lost_batches_are_counted_but_not_those_before_our_start() -> None:
    gate = Gate()
    for seq in (10, 11, 15):
        gate.judge(batch(seq))
    position = gate.position("mp-0")
    assert position is not None
    assert position.n_lost == 3


def test_chunks_follow_each_other_within_a_batch() -> None:
    sent = [entry(0), entry(1), entry(3), entry(4), entry(5, offset=-1), entry(1, object_group_id=1)]
    found = [
        (event.hashes, event.parent)
        for event in events_of(batch(1, entries=sent))
        if isinstance(event, BlockStored)
    ]
    assert found == [((EngineHash(1),), None), ((EngineHash(2),), 1), ((EngineHash(5),), 4)]


def test_chunk_before_may_be_named() -> None:
    named = Entry(ChunkKey("05", "m"), 0, [1] * 64, 256, "00000000000000000000000000000004")
    (event,) = events_of(batch(1, entries=[named]))
    assert isinstance(event, BlockStored)
    assert event.parent == 4


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda e: (
            st.lists(e, max_size=3)
            | st.dictionaries(st.sampled_from(["batches", "instance_id", "seq", "entries"]), e, max_size=4)
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_body_is_read_or_refused(body: bytes) -> None:
    try:
        found = read_batches(body)
    except LmcacheError:
        return
    assert all(list(events_of(each)) is not None for each in found)


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 0}, {"incarnation": -1}, {"event_type": "else"}, {"tier": "l9"}, {"instance_id": ""},
        {"entries": [{"key": {"chunk_hash_hex": "xyz", "model_name": "m"}}]},
        {"entries": [{"key": {"chunk_hash_hex": "00", "model_name": "m"}, "token_ids": [2**32]}]},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_batches_are_refused(change: dict[str, Any]) -> None:
    body = recorded()
    body["batches"][0] |= change
    with pytest.raises(LmcacheError):
        read_batches(json.dumps(body).encode())


# -- in the fleet -----------------------------------------------------------------------------------------------------


@dataclass
class Served:
    fleet: Fleet
    publishers: LmcachePublishers
    client: httpx.AsyncClient
    n_gpu: int = 1
    held: list[int] = field(default_factory=list[int])

    async def post(self, body: object) -> tuple[int, Any]:
        answer = await self.client.post("/events", content=json.dumps(body))
        return answer.status_code, answer.json()

    def tokens(self, tier: str, endpoint: str = "a") -> int:
        return self.fleet.atlas.match(Prefix(PROMPT))[endpoint].tier_blocks[tier] * BLOCK


@pytest.fixture
async def served() -> AsyncGenerator[Served]:
    config = with_endpoints(make_endpoint("a", 1, events=""), make_endpoint("b", 2, events=""), tiers=TIERS)
    async with make_fleet(config) as fleet:
        for name, each in wanted_endpoints(config).items():
            fleet.add(name, each.addresses, each.labels)
            fleet.atlas.apply(name, 0, [BlockStored((EngineHash(7),), None, array("I", [1] * BLOCK), BLOCK)])
        publishers = LmcachePublishers(fleet, {"mp-0": ("a",)}, frozenset({"tiny", "m"}))
        app = FastAPI()
        install_error_handlers(app)
        app.include_router(lmcache_routes(publishers))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            yield Served(fleet, publishers, client)


async def test_recorded_batches_are_applied(served: Served) -> None:
    body = recorded()
    store, storage, access, *others = body["batches"]
    assert await served.post({"batches": [store]}) == (200, {"applied": 1, "duplicates": 0, "stale": 0})
    assert (served.tokens("cpu"), served.tokens("cpu", "b")) == (512, 0)
    assert (await served.post({"batches": [store, storage, access]}))[1] == {
        "applied": 2,
        "duplicates": 1,
        "stale": 0,
    }
    assert (served.tokens("pool"), served.tokens("pool", "b")) == (256, 256)  # every server can load it
    assert (await served.post({"batches": others}))[1]["applied"] == len(others)


async def test_chunks_of_which_nothing_can_be_known_are_counted(served: Served) -> None:
    unknown = Entry(ChunkKey("0a", "m"), 1000)
    await served.publishers.take(
        [batch(1, entries=[entry(0)]), batch(2, entries=[entry(1), entry(2), unknown])]
    )
    counts = served.publishers.counts
    # the chunk after the one left out has a parent, which no rank knows
    assert (counts["no_parent"], counts["no_tokens"], served.tokens("cpu")) == (1, 1, 64)


async def test_restarted_server_has_empty_memory(served: Served) -> None:
    await served.publishers.take([batch(1, entries=[entry(0), entry(1)])])
    assert served.tokens("cpu") == 128
    await served.publishers.take([batch(1, incarnation=2, entries=[entry(0)])])
    assert (served.tokens("cpu"), served.publishers.counts["restarts"]) == (64, 1)


async def test_nothing_is_kept_of_an_endpoint_that_is_removed_while_a_batch_is_applied(
    served: Served,
) -> None:
    chunks = [Entry(ChunkKey(f"{n + 1:064x}", "m"), 1000, [n] * 64, 0) for n in range(3 * EVENTS_PER_TURN)]
    taking = asyncio.create_task(served.publishers.take([batch(1, entries=chunks)]))
    await asyncio.sleep(0)  # its first turn
    assert served.fleet.atlas.stats().residencies > EVENTS_PER_TURN
    await served.fleet.remove("a")
    await taking
    served.fleet.atlas.sweep(n_keys=10_000)
    assert served.fleet.atlas.stats().residencies == 1  # of b


async def test_deleted_chunk_leaves(served: Served) -> None:
    await served.publishers.take(
        [batch(1, entries=[entry(0), entry(1)]), batch(2, kind="delete", entries=[entry(1)])]
    )
    assert served.tokens("cpu") == 64


async def test_salted_chunks_are_those_of_salted_prompts(served: Served) -> None:
    await served.publishers.take([batch(1, entries=[entry(0, cache_salt="s")])])
    match = served.fleet.atlas.match(Prefix(PROMPT, salt="s"))["a"]
    assert (served.tokens("cpu"), match.tier_blocks["cpu"] * BLOCK) == (0, 64)


async def test_capacity_bounds_the_memory(served: Served) -> None:
    await served.publishers.take(
        [batch(1, entries=[entry(0), entry(1)]), batch(2, kind="config", capacity_bytes=1999)]
    )
    assert capacity(served) == 64 // BLOCK


def capacity(served: Served) -> int | None:
    (rank,) = next(iter(served.fleet)).ranks
    return rank.ledger.capacity(served.fleet.atlas.tiers.configured[1])


async def test_capacity_that_comes_before_the_first_chunk_bounds_the_memory_too(served: Served) -> None:
    await served.publishers.take(
        [batch(1, kind="config", capacity_bytes=1999), batch(2, entries=[entry(0), entry(1)])]
    )
    assert capacity(served) == 64 // BLOCK


async def test_capacity_of_a_restarted_server_counts_from_its_first_revision_on(served: Served) -> None:
    await served.publishers.take([
        batch(1, entries=[entry(0)]),
        batch(2, kind="config", capacity_bytes=1999, capacity_revision=3),
        batch(3, kind="config", capacity_bytes=9999, capacity_revision=2),  # came late
    ])  # fmt: skip
    assert capacity(served) == 64 // BLOCK
    await served.publishers.take(
        [batch(1, incarnation=2, kind="config", capacity_bytes=2999, capacity_revision=1)]
    )
    assert capacity(served) == 2 * 64 // BLOCK


async def test_capacity_of_an_endpoint_that_comes_again_does_not_wait_for_a_later_revision(
    served: Served,
) -> None:
    await served.publishers.take([
        batch(1, entries=[entry(0)]),
        batch(2, kind="config", capacity_bytes=1999, capacity_revision=3),
    ])  # fmt: skip
    endpoint = served.fleet.get("a")
    assert endpoint is not None
    await served.fleet.remove("a")
    served.fleet.add("a", endpoint.addresses, {})
    served.fleet.atlas.apply("a", 0, [BlockStored((EngineHash(7),), None, array("I", [1] * BLOCK), BLOCK)])

    await served.publishers.take([
        batch(3, kind="config", capacity_bytes=2999, capacity_revision=1),
        batch(4, entries=[entry(0)]),
    ])  # fmt: skip

    returned = served.fleet.get("a")
    assert returned is not None
    tier = served.fleet.atlas.tiers.configured[1]
    assert [rank.ledger.capacity(tier) for rank in returned.ranks] == [2 * 64 // BLOCK]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"instance_id": "mp-9"}, "unknown_instance", id="no_endpoint"),
        pytest.param({"model": "other"}, "other_model", id="another_model"),
    ],
)
async def test_batches_of_strangers_are_counted(served: Served, change: dict[str, str], reason: str) -> None:
    body: list[dict[str, Any]] = recorded()["batches"][:1]
    body[0]["instance_id"] = change.get("instance_id", "mp-0")
    for each in body[0]["entries"]:
        each["key"]["model_name"] = change.get("model", "tiny")
    assert (await served.post({"batches": body}))[0] == 200
    assert (served.publishers.counts[reason], served.tokens("cpu")) == (1, 0)


async def test_unreadable_bodies_are_refused(served: Served) -> None:
    status, answer = await served.post({"batches": [1]})
    assert (status, answer["error"]["code"]) == (400, "BadRequest")
