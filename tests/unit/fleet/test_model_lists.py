"""Lists of models, requested from real servers: merged, due, hostile."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator

import aiohttp
import pytest
from aiohttp import web

from kvatlas.fleet import model_lists
from kvatlas.fleet.model_lists import INTERVAL_S, MAX_LIST_BYTES, ROUND_S, ModelLists
from support.waiting import until


class Engine:
    """An engine with a list, or whatever the test gives as one."""

    def __init__(self, *names: str) -> None:
        self.body: bytes = json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()
        self.status = 200
        self.n_requests = 0

    async def answer(self, _: web.Request) -> web.Response:
        self.n_requests += 1
        return web.Response(body=self.body, status=self.status)


class SilentEngine(Engine):
    """One that does not answer before the end of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def answer(self, _: web.Request) -> web.Response:
        await self.ended.wait()
        return await super().answer(_)


@contextlib.asynccontextmanager
async def following(
    **engines: Engine,
) -> AsyncGenerator[tuple[ModelLists, dict[str, str], aiohttp.ClientSession]]:
    addresses: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        for name, engine in engines.items():
            app = web.Application()
            app.router.add_get("/v1/models", engine.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            addresses[name] = f"http://127.0.0.1:{runner.addresses[0][1]}"
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield ModelLists(lambda: addresses, lambda: True), addresses, session


def ids(lists: ModelLists) -> list[str] | None:
    merged = lists.merged()
    return None if merged is None else [each["id"] for each in json.loads(merged)["data"]]


async def test_models_of_all_endpoints_are_listed_once_and_sorted() -> None:
    one, other = Engine("b", "a"), Engine("c", "b")
    one.body = json.dumps({
        "data": [{"id": "b", "object": "model", "created": 5, "owned_by": "vllm", "root": "/secret/path"}, {"id": "a"}]
    }).encode()  # fmt: skip
    async with following(one=one, other=other) as (lists, _, session):
        assert lists.merged() is None
        await lists.look(session, 0.0)
        merged = json.loads(lists.merged() or b"")
    b = {"id": "b", "object": "model", "created": 5, "owned_by": "vllm"}
    assert merged == {"object": "list", "data": [{"id": "a"}, b, {"id": "c"}]}


async def test_list_of_a_server_that_took_the_name_of_another_is_requested_at_once() -> None:
    async with following(one=Engine("a"), other=Engine("b")) as (lists, addresses, session):
        await lists.look(session, 0.0)
        addresses["one"] = addresses.pop("other")
        await lists.look(session, ROUND_S)
        assert ids(lists) == ["b"]


async def test_server_that_hangs_takes_no_time_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_lists, "MAX_CONCURRENT", 1)
    monkeypatch.setattr(model_lists, "TIMEOUT_S", 0.2)
    silent, other = SilentEngine(), Engine("a")
    async with following(silent=silent, other=other) as (lists, _, _session):
        task = asyncio.create_task(lists.follow())
        try:
            await until(lambda: ids(lists) == ["a"], what="the other's list")
        finally:
            silent.ended.set()
            task.cancel()
            await asyncio.wait([task])


async def test_lists_are_requested_again_when_due_and_go_with_their_endpoint() -> None:
    one, other = Engine("a"), Engine("b")
    async with following(one=one, other=other) as (lists, addresses, session):
        other.status = 503
        await lists.look(session, 0.0)
        assert ids(lists) == ["a"]
        other.status = 200
        await lists.look(session, ROUND_S)
        assert (ids(lists), one.n_requests) == (["a", "b"], 1)
        one.status = 500
        await lists.look(session, INTERVAL_S)
        assert (ids(lists), one.n_requests) == (["a", "b"], 2)
        del addresses["one"]
        await lists.look(session, INTERVAL_S + ROUND_S)
        assert ids(lists) == ["b"]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff", id="no_utf8"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"data": [{"id": ""}]}', id="no_name"),
        pytest.param(b'{"data": [{"id": "%s"}]}' % (b"a" * 300), id="long_name"),
        pytest.param(b'{"data": [%s{"id": "a"}]}' % (b" " * MAX_LIST_BYTES), id="long"),
        pytest.param(b'{"error": "no"}', id="other_object"),
    ],
)
async def test_list_that_is_none_is_left_out(body: bytes) -> None:
    one = Engine()
    one.body = body
    async with following(one=one, other=Engine("b")) as (lists, _, session):
        await lists.look(session, 0.0)
        assert ids(lists) == ["b"]


async def test_endpoint_that_does_not_answer_is_left_out() -> None:
    async with following(one=Engine("a")) as (lists, addresses, session):
        addresses["gone"] = "http://127.0.0.1:1"
        await lists.look(session, 0.0)
        assert ids(lists) == ["a"]


async def test_adapter_goes_where_it_is_loaded_and_a_model_also_where_nothing_is_known() -> None:
    one, other, silent = Engine("m"), Engine("m"), Engine()
    one.body = json.dumps({"data": [{"id": "m"}, {"id": "adapter", "parent": "m"}]}).encode()
    silent.status = 503
    async with following(one=one, other=other, silent=silent) as (lists, urls, session):
        places = {name: url.removeprefix("http://") for name, url in urls.items()}
        assert lists.addresses_of("m") is None
        await lists.look(session, 0.0)
        assert lists.addresses_of("adapter") == frozenset({places["one"]})
        assert lists.addresses_of("m") == frozenset(places.values())
        assert lists.addresses_of("nobody's") == frozenset({places["silent"]})
        assert lists.addresses_of("") is None
        del urls["silent"]
        await lists.look(session, ROUND_S)
        assert lists.addresses_of("m") == frozenset({places["one"], places["other"]})
        assert lists.addresses_of("nobody's") is None
