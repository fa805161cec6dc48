"""A stand-in sidecar that listens."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Self

import aiohttp
from aiohttp import web

from kvatlas.sim.held_port import HeldPort
from support.sidecar.bodies import PATHS, with_transfer
from support.sidecar.connectors import BOOTSTRAP_LIMIT_S, Connectors
from support.sidecar.encoders import EncodeStage
from support.sidecar.errors import BadBodyError, decode_failed, drop, encoded, failed, object_of
from support.sidecar.json_values import Json
from support.sidecar.legs import BrokenAnswerError, Call, Legs, NoAnswerError
from support.sidecar.route import Route, Source, passed_on, route_of
from support.sidecar.settings import Settings, from_flags

HOST = "127.0.0.1"

Start = Callable[[Sequence[str], Mapping[str, str], int], AbstractAsyncContextManager[None]]
"""Starts a sidecar with the reference's flags and environment variables, on a port that the flags name too."""

_MAX_BODY_BYTES = 64 * 2**20
_CHAT = "/v1/chat/completions"
_AT_ONCE_S = 0.001


class Sidecar:
    """A sidecar, which runs inside `async with`.

    Args:
        settings: what it stands in front of.
        bootstrap_limit_s: longest wait for Mooncake's bootstrap server.
    """

    def __init__(self, settings: Settings, *, bootstrap_limit_s: float = BOOTSTRAP_LIMIT_S) -> None:
        self._held = HeldPort(HOST, settings.port)
        self._settings = replace(settings, port=self._held.number)
        self._bootstrap_limit_s = bootstrap_limit_s
        self._stack = AsyncExitStack()

    @property
    def port(self) -> int:
        """Port of the listener for rank 0."""
        return self._settings.port

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(force_close=True, limit=0),
                    timeout=aiohttp.ClientTimeout(total=None),
                    auto_decompress=False,
                )
            )
            legs = Legs(session)
            connectors = Connectors(self._settings, legs, bootstrap_limit_s=self._bootstrap_limit_s)
            stack.push_async_callback(connectors.close)
            for rank in range(self._settings.ranks):
                proxy = Proxy(self._settings, rank, legs, connectors)
                app = web.Application(client_max_size=_MAX_BODY_BYTES)
                app.router.add_route("*", "/{tail:.*}", proxy.handle)
                runner = web.AppRunner(
                    app, access_log=None, handler_cancellation=True, shutdown_timeout=_AT_ONCE_S
                )
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, HOST, self.port + rank, reuse_address=True).start()
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def stand_in(
    flags: Sequence[str],
    environment: Mapping[str, str],
    port: int,
    *,
    bootstrap_limit_s: float = BOOTSTRAP_LIMIT_S,
) -> AsyncGenerator[None]:
    """Run a stand-in; see `Start`."""
    async with Sidecar(from_flags(flags, environment), bootstrap_limit_s=bootstrap_limit_s) as sidecar:
        assert sidecar.port == port
        yield


class Proxy:
    """The requests of one listener.

    Args:
        settings: of the sidecar.
        rank: data-parallel rank of the listener.
        legs: sends requests to engines.
        connectors: run prefill and decode.
    """

    def __init__(self, settings: Settings, rank: int, legs: Legs, connectors: Connectors) -> None:
        self._settings, self._rank, self._legs, self._connectors = settings, rank, legs, connectors
        self._encode = EncodeStage(legs, passes_params=settings.encoder_connector == "ec-nixl")

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request."""
        try:
            return await self._answer(request)
        except BadBodyError as error:
            return failed(error.status, str(error))
        except BrokenAnswerError:
            drop(request)
            return web.Response()  # goes nowhere

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0]
        if path == "/health" and request.method in ("GET", "HEAD"):
            return web.Response()
        clean = posixpath.normpath(path).replace("//", "/")
        if clean != path.rstrip("/") and path != "/":
            return web.Response(status=307, headers={"Location": clean})
        body, client = await request.read(), request.remote or ""
        if request.method != "POST" or path not in PATHS:
            call = Call(request, request.raw_path, passed_on(request.headers, client), body)
            return await self._to_engine(call, self._rank)
        route = route_of(request.headers, self._settings, client)
        call = Call(request, request.raw_path, route.headers, body)
        if route.encoders is not None and self._settings.encoder_connector:
            encoded_call = await self._encode.run(call, route.encoders)
            return await self._generate(encoded_call, replace(route, source=None), path=_CHAT)
        return await self._generate(call, route, path=path)

    async def _generate(self, call: Call, route: Route, *, path: str) -> web.StreamResponse:
        async def decode(leg: Call, cached: int | None) -> web.StreamResponse:
            rank = self._rank_of(route) if self._settings.connector == "nixlv2" else self._rank
            if rank is None:
                return web.Response(status=400)
            return await self._to_engine(leg, rank, cached=cached)

        if route.prefill:
            source = self._pull(route.source) if route.source is not None else None
            return await self._connectors.run(call, route.prefill, source, path=path, decode=decode)
        rank = self._rank_of(route)
        if rank is None:
            return web.Response(status=400)
        own = Source(self._settings.pod_ip, str(self._settings.port + self._rank))
        if route.source is not None and route.source != own and not (route.rank and self._rank == 0):
            body = object_of(call.body, prefix="invalid JSON: ") or {}
            params = {"remote_kv_source": self._pull(route.source)}
            call = call.with_body(encoded(with_transfer(body, params)))
        return await self._to_engine(call, rank)

    def _rank_of(self, route: Route) -> int | None:
        """Return the rank that the header names, this listener's without one, None if it names none of this pod."""
        if not route.rank or self._rank:
            return self._rank
        ports = {f"{self._settings.pod_ip}:{self._settings.port + n}": n for n in range(self._settings.ranks)}
        return ports.get(route.rank)

    def _pull(self, source: Source) -> Json:
        return {
            "kv_request_id": str(uuid.uuid4()),
            "remote_host": source.host,
            "remote_port": self._connectors.pull_port(source.port),
        }

    async def _to_engine(self, call: Call, rank: int, *, cached: int | None = None) -> web.StreamResponse:
        try:
            return await self._legs.forward(
                f"{HOST}:{self._settings.engine_port + rank}", call, cached=cached
            )
        except NoAnswerError as error:
            return decode_failed(error)
