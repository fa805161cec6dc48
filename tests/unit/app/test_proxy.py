"""An Envoy in the pod, by its admin interface: closes connections, and is waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from kvatlas.app.proxy import Proxy
from kvatlas.sim.held_port import HeldPort
from support.waiting import PATIENCE_S, until


@dataclass
class Admin:
    """An admin interface.

    Attributes:
        address: `HOST:PORT`.
        n_active: requests in flight.
        n_total: requests since the start.
        asked: paths, in order.
        body: is sent for statistics in place of the true ones.
    """

    address: str = ""
    n_active: int = 0
    n_total: int = 0
    asked: list[str] = field(default_factory=list[str])
    body: str | None = None

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.path}")
        if request.path != "/stats":
            return web.Response(text="OK\n")
        if self.body is not None:
            return web.Response(text=self.body)
        values = {
            "http.admin.downstream_rq_active": 1,
            "http.admin.downstream_rq_total": len(self.asked),
            "http.gateway.downstream_rq_active": self.n_active,
            "http.gateway.downstream_rq_total": self.n_total,
        }
        return web.json_response({"stats": [{"name": name, "value": n} for name, n in values.items()]})


@asynccontextmanager
async def admin() -> AsyncGenerator[Admin]:
    made, app = Admin(), web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.address = f"127.0.0.1:{runner.addresses[0][1]}"
        yield made
    finally:
        await runner.cleanup()


async def test_connections_are_kept_at_the_start_and_closed_at_the_end() -> None:
    async with admin() as envoy:
        proxy = Proxy(envoy.address)
        await proxy.keep_connections()
        assert await proxy.close_connections()
    assert envoy.asked == ["POST /healthcheck/ok", "POST /healthcheck/fail"]


async def test_wait_ends_when_no_request_is_in_flight_and_none_comes() -> None:
    async with admin() as envoy:
        envoy.n_active = 1
        waiting = asyncio.create_task(Proxy(envoy.address).until_quiet(0.001, limit_s=PATIENCE_S))
        await until(lambda: len(envoy.asked) > 3, what="several looks")
        assert not waiting.done()
        envoy.n_active = 0
        await waiting


async def test_wait_goes_on_while_short_requests_come() -> None:
    async with admin() as envoy:
        waiting = asyncio.create_task(Proxy(envoy.address).until_quiet(PATIENCE_S, limit_s=0.3))
        await until(lambda: len(envoy.asked) > 1, what="two looks")
        assert not waiting.done()
        await waiting  # the limit


@pytest.mark.parametrize("body", ["", "[]", '{"stats": [{"name": "x"}]}', '{"stats": 1}'])
async def test_wait_ends_when_the_answer_is_none_of_envoys(body: str) -> None:
    async with admin() as envoy:
        envoy.body = body
        await Proxy(envoy.address).until_quiet(PATIENCE_S, limit_s=PATIENCE_S)
    assert len(envoy.asked) == 1


async def test_envoy_that_is_gone_is_not_waited_for_and_named(caplog: pytest.LogCaptureFixture) -> None:
    port = HeldPort()
    proxy = Proxy(f"127.0.0.1:{port.number}")
    with caplog.at_level(logging.WARNING):
        assert not await proxy.close_connections()
    await proxy.until_quiet(PATIENCE_S, limit_s=PATIENCE_S)
    assert f"no answer from 127.0.0.1:{port.number}" in caplog.text


async def test_nothing_is_asked_or_logged_when_there_is_no_envoy(caplog: pytest.LogCaptureFixture) -> None:
    proxy = Proxy("")
    await proxy.keep_connections()
    assert not await proxy.close_connections()
    assert caplog.text == ""
