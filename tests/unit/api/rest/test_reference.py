"""The API's description, as JSON and as a page."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
from fastapi import FastAPI

from kvatlas.api.rest.reference import reference_routes

DESCRIPTION: dict[str, Any] = {"paths": {}, "components": {"schemas": {}}}


async def test_description_is_made_while_the_loop_serves_others() -> None:
    loop, threads, may_end = asyncio.get_running_loop(), list[int](), threading.Event()

    def described() -> dict[str, Any]:
        threads.append(threading.get_ident())
        loop.call_soon_threadsafe(may_end.set)
        assert threading.get_ident() == threading.main_thread().ident or may_end.wait(60)
        return DESCRIPTION

    app = FastAPI(openapi_url=None)
    app.include_router(reference_routes(described))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        answers = [await client.get("/openapi.json"), await client.get("/docs")]

    assert answers[0].json() == DESCRIPTION
    assert [each.status_code for each in answers] == [200, 200]
    assert threading.get_ident() not in threads
    assert may_end.is_set()
