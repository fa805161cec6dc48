"""Bounds on REST calls, without a running process."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from kvatlas.api.rest.limits import BodyReception, CallLimit
from kvatlas.api.rest.metrics import RestMetrics
from kvatlas.configs.listeners import RestConfig


async def test_call_past_the_bound_is_refused_until_another_ends_and_probes_never_are() -> None:
    go_on, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(_request: Request) -> PlainTextResponse:
        begun.release()
        await go_on.wait()
        return PlainTextResponse("done")

    async def probe(_request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    registry = CollectorRegistry()
    routes = [Route("/slow", slow), Route("/healthz", probe)]
    app = CallLimit(Starlette(routes=routes), max_calls=2, metrics=RestMetrics(registry))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        first = [asyncio.create_task(client.get("/slow")) for _ in range(2)]
        for _ in first:
            await begun.acquire()

        refused, alive = await client.get("/slow"), await client.get("/healthz")
        go_on.set()
        answers = await asyncio.gather(*first)
        after = await client.get("/slow")

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "rest.maxPendingRequests" in refused.json()["error"]["message"]
    assert [each.text for each in (alive, *answers, after)] == ["ok", "done", "done", "done"]
    assert registry.get_sample_value("kvatlas_rest_refusals_total", {"reason": "too_many"}) == 1


class Upload:
    """The body of one call, which comes piece by piece."""

    def __init__(self, reception: BodyReception) -> None:
        self._pieces: asyncio.Queue[Message] = asyncio.Queue()
        self._statuses: list[int] = []
        self._served = asyncio.create_task(reception(_SCOPE, self._pieces.get, self._send))

    def gets(self, n_bytes: int, *, end: bool = False) -> None:
        self._pieces.put_nowait({"type": "http.request", "body": bytes(n_bytes), "more_body": not end})

    async def status(self) -> int:
        await self._served
        return self._statuses[0]

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._statuses.append(message["status"])


_SCOPE: Scope = {"type": "http", "method": "POST", "path": "/query", "headers": [(b"content-length", b"9")]}


async def _done(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("done")(scope, receive, send)


@pytest.mark.parametrize("n_turns", [pytest.param(n, id=f"{n}_turns_between") for n in range(1, 5)])
async def test_bodies_that_come_while_the_oldest_is_refused_are_served_or_refused_themselves(
    n_turns: int,
) -> None:
    registry = CollectorRegistry()
    config = RestConfig(max_held_bytes=1000, max_body_bytes=10_000)
    reception = BodyReception(_done, config=config, metrics=RestMetrics(registry))
    uploads = [Upload(reception) for _ in range(4)]
    await asyncio.sleep(0)
    for each in uploads:
        each.gets(600)
        for _ in range(n_turns):
            await asyncio.sleep(0)
    for each in uploads:
        each.gets(0, end=True)

    statuses = [await each.status() for each in uploads]

    assert (statuses[0], statuses[-1]) == (503, 200)
    refused = registry.get_sample_value("kvatlas_rest_refusals_total", {"reason": "too_much"})
    assert (set(statuses), refused) == ({200, 503}, statuses.count(503))
