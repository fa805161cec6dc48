"""Prompts that are looked up in LMCache's key directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from array import array
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.configs.lmcache import LmcacheDirectoryConfig
from kvatlas.configs.units import Duration
from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.fleet.lmcache.batches import LmcacheError
from kvatlas.fleet.lmcache.directory import MAX_WAITING, Directory, events_of_answer, read_answer
from kvatlas.fleet.roster import wanted_endpoints
from kvatlas.indexer.prefix import Prefix
from support.fleets import make_endpoint, make_fleet, with_endpoints
from support.waiting import until

BLOCK, CHUNK = 16, 64
PROMPT = array("I", range(3, 3 + 4 * CHUNK))
TIERS = [{"name": "gpu", "media": ["GPU"]}, {"name": "pool", "media": ["LMCACHE-L2-FS"], "scope": "shared"}]
SHARED = {
    "instance_id": "mp-0",
    "incarnation": 1,
    "tier": "l2",
    "backend": "fs",
    "size_bytes": 1,
    "shared": True,
}


def result(number: int, *placements: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    key = {"chunk_hash_hex": f"{number + 1:064x}", "model_name": "m", "kv_rank": rank, "cache_salt": ""}
    return {"key": key, "placements": list(placements), "token_ids": [], "access_count": 1}


def answer(*results: dict[str, Any], chunks: int) -> bytes:
    return json.dumps({"chunks": chunks, "results": list(results)}).encode()


def hashes(body: bytes) -> list[tuple[int, int | None]]:
    return [(event.hashes[0], event.parent) for event in events_of_answer(read_answer(body), PROMPT, CHUNK)]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        pytest.param(answer(result(0, SHARED), result(1, SHARED), chunks=2), [(1, None), (2, 1)], id="all"),
        pytest.param(
            answer(result(0, SHARED), result(1), result(2, SHARED), chunks=3), [(1, None)], id="gap"
        ),
        pytest.param(answer(result(0, SHARED | {"tier": "l1"}), chunks=1), [], id="memory_of_one_server"),
        pytest.param(answer(result(0, SHARED | {"shared": False}), chunks=1), [], id="storage_of_one_server"),
        pytest.param(answer(result(0, SHARED), result(0, rank=1), chunks=1), [], id="part_missing"),
        pytest.param(
            answer(result(0, SHARED), result(0, SHARED, rank=1), chunks=1), [(1, None)], id="two_ranks"
        ),
        pytest.param(
            answer(*(result(n, SHARED) for n in range(9)), chunks=9), [], id="longer_than_the_prompt"
        ),
        pytest.param(answer(chunks=0), [], id="nothing"),
    ],
)
def test_leading_chunks_in_storage_for_all_are_known(
    body: bytes, wanted: list[tuple[int, int | None]]
) -> None:
    assert hashes(body) == wanted


@given(
    st.binary(max_size=80)
    | st.dictionaries(
        st.sampled_from(["chunks", "results"]), st.integers() | st.lists(st.integers() | st.none())
    ).map(lambda each: json.dumps(each).encode())
)
def test_any_answer_is_read_or_refused(body: bytes) -> None:
    try:
        found = read_answer(body)
    except LmcacheError:
        return
    assert len(list(events_of_answer(found, PROMPT, CHUNK))) <= 4


@contextlib.asynccontextmanager
async def coordinator(
    body: bytes, *, status: int = 200, hangs_up: int = 0
) -> AsyncGenerator[tuple[str, list[dict[str, Any]]]]:
    """Serve a directory that closes the connection on the first `hangs_up` questions."""
    asked: list[dict[str, Any]] = []

    async def lookup(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if len(asked) <= hangs_up and request.transport is not None:
            request.transport.abort()
        return web.Response(body=body, status=status)

    app = web.Application()
    app.router.add_post("/directory/lookup", lookup)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def directory(url: str) -> AsyncGenerator[tuple[Directory, Any]]:
    config = with_endpoints(make_endpoint("a", 1, events=""), make_endpoint("b", 2, events=""), tiers=TIERS)
    async with make_fleet(config) as fleet:
        for name, each in wanted_endpoints(config).items():
            fleet.add(name, each.addresses, each.labels)
            fleet.atlas.apply(name, 0, [BlockStored((EngineHash(7),), None, array("I", [1] * BLOCK), BLOCK)])
        one = Directory(fleet, LmcacheDirectoryConfig(url=url, chunk_tokens=CHUNK, ttl=Duration(10.0)), "m")
        one.start()
        try:
            yield one, fleet
        finally:
            await one.stop()


async def test_routed_prompt_is_known_to_the_requests_after_it() -> None:
    async with (
        coordinator(answer(result(0, SHARED), result(1, SHARED), chunks=2)) as (url, asked),
        directory(url) as (one, fleet),
    ):
        one.routed(Prefix(PROMPT), now=0.0)
        await until(lambda: one.counts["chunks"] == 2, what="the chunks found")
        found = fleet.atlas.match(Prefix(PROMPT))
        assert {name: found[name].tier_blocks["pool"] for name in ("a", "b")} == {"a": 8, "b": 8}
        assert asked[0]["token_ids"] == PROMPT.tolist()
        one.routed(Prefix(PROMPT), now=9.0)
        one.routed(Prefix(PROMPT, salt="s"), now=9.0)
        one.routed(Prefix(PROMPT[: CHUNK - 1]), now=9.0)
        one.routed(Prefix(PROMPT), now=10.0)
        await until(lambda: len(asked) == 2, what="asked again after its time")


async def test_failing_directory_harms_nothing() -> None:
    async with coordinator(b"no", status=500) as (url, _), directory(url) as (one, _):
        one.routed(Prefix(PROMPT), now=0.0)
        await until(lambda: one.counts["failed"] == 1, what="the failure counted")


async def test_directory_that_hangs_up_is_asked_on() -> None:
    body = answer(result(0, SHARED), chunks=1)
    async with coordinator(body, hangs_up=1) as (url, _), directory(url) as (one, _):
        one.routed(Prefix(PROMPT[:CHUNK]), now=0.0)
        one.routed(Prefix(PROMPT), now=0.0)
        await until(lambda: one.counts["chunks"] == 1, what="the second answer")
        assert one.counts["failed"] == 1


async def test_waiting_prompts_are_bounded() -> None:
    async with directory("http://127.0.0.1:9") as (one, _):
        for number in range(MAX_WAITING + 3):
            one.routed(Prefix(array("I", [number] * CHUNK)), now=0.0)
        assert one.counts["skipped"] == 3
        await asyncio.sleep(0)
