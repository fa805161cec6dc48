"""Bounds on REST calls, without a running process."""

from __future__ import annotations

import asyncio

import httpx
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from kvatlas.api.rest.limits import CallLimit
from kvatlas.api.rest.metrics import RestMetrics


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
