"""A real Envoy with a shipped configuration, kvatlas's ext-proc server, and recording model servers."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
from aiohttp import web
from starlette.datastructures import Headers

from kvatlas.api.extproc.dialect import Dialect, Proposal
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.api.extproc.stream import StreamOptions, StreamReports
from kvatlas.api.tls.certificates import Certificates
from kvatlas.routing.outcome import Completion
from kvatlas.routing.router import Refusal, RefusalCode, Route, RoutingRequest, RoutingResult
from kvatlas.sim.envoy import Address, EnvoyConfig, EnvoyProcess, find_envoy, gateway_config
from kvatlas.tokenization.eventual import Eventual, Later
from support.ext_proc import FixedRouter, make_route
from support.waiting import PATIENCE_S

ANY_PORT = ("127.0.0.1", 0)
DESTINATION = "x-gateway-destination-endpoint"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 8}}
FIRST_EVENT, LAST_EVENT = b"data: 1\n\n", b"data: " + json.dumps({"usage": USAGE}).encode() + b"\n\n"
Mode = Literal["duplex", "buffered"]


@dataclass(frozen=True)
class Received:
    """A request as a model server received it."""

    headers: Headers
    body: bytes


@dataclass
class ModelServer:
    """A model server that keeps its requests."""

    address: str = ""
    status: int = 200
    received: list[Received] = field(default_factory=list[Received])
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Lets `/v1/stream` continue after its first event."""

    @property
    def host_port(self) -> Address:
        """Return its address."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    async def complete(self, request: web.Request) -> web.Response:
        """Send a whole JSON response, compressed if the client accepts that."""
        received = await request.read()
        headers = Headers(raw=[(name.lower(), value) for name, value in request.raw_headers])
        self.received.append(Received(headers, received))
        model = json.loads(received).get("model") if received else None
        body = json.dumps({"server": self.address, "model": model, "usage": USAGE}).encode()
        told = {"content-type": "application/json"}
        if request.headers.get("accept-encoding") == "gzip":
            body, told["content-encoding"] = gzip.compress(body), "gzip"
        return web.Response(body=body, headers=told, status=self.status)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send two events, the second once `released` is set."""
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(FIRST_EVENT)
        await self.released.wait()
        await answer.write(LAST_EVENT)
        return answer

    async def realtime(self, request: web.Request) -> web.WebSocketResponse:
        """Return each message over a WebSocket, after the server's address."""
        answer = web.WebSocketResponse()
        await answer.prepare(request)
        async for message in answer:
            await answer.send_str(f"{self.address} {message.data}")
        return answer


class JsonRouter(FixedRouter):
    """A router that refuses a body that is not JSON, as the real one does, and waits for its release."""

    def __init__(self, answer: Route | Refusal) -> None:
        super().__init__(answer)
        self.released = asyncio.Event()
        self.released.set()

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        return Later(self._route(request))

    async def _route(self, request: RoutingRequest) -> RoutingResult:
        answer = await super().route(request)
        await self.released.wait()
        if request.has_body:
            try:
                json.loads(request.body)
            except ValueError:
                return Refusal(RefusalCode.BAD_REQUEST, "request body is not JSON")
        return answer


@dataclass
class Gateway:
    """A running Envoy with its picker, model servers and a client."""

    envoy: EnvoyProcess
    client: aiohttp.ClientSession
    router: JsonRouter
    picker: ExtProcServer
    health: HealthService
    servers: list[ModelServer]
    completions: asyncio.Queue[Completion]

    async def served_by(self, headers: dict[str, str] | None = None) -> str:
        """Send a completion request, and return which server responded."""
        async with self.client.post("/v1/completions", json={"prompt": "p"}, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["server"])

    async def completion(self) -> Completion:
        """Return the next request that ended."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.completions.get()

    async def picker_is_out(self) -> None:
        """Return once Envoy's health checks have excluded the picker."""
        await pickers_in_use(self.envoy, self.client, 0)


async def pickers_in_use(envoy: EnvoyProcess, client: aiohttp.ClientSession, count: int) -> None:
    """Return once Envoy's health checks admit `count` pickers."""
    stat = "cluster.kvatlas.membership_healthy"
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with client.get(f"{envoy.admin_url}/stats", params={"filter": stat}) as answer:
                if (await answer.text()).strip() == f"{stat}: {count}":
                    return
            await asyncio.sleep(0.02)


def shipped(config: EnvoyConfig) -> EnvoyConfig:
    """Return the configuration unchanged."""
    return config


def http_filters(config: EnvoyConfig) -> list[EnvoyConfig]:
    """Return the filters that a request passes, for edits in place."""
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    filters: list[EnvoyConfig] = chain["filters"][0]["typed_config"]["http_filters"]
    return filters


def with_processing_mode(**modes: str) -> Callable[[EnvoyConfig], EnvoyConfig]:
    """Return an edit of the messages that Envoy sends to the picker."""

    def edit(config: EnvoyConfig) -> EnvoyConfig:
        ext_proc: dict[str, Any] = next(
            each["typed_config"] for each in http_filters(config) if each["name"].endswith("ext_proc")
        )
        ext_proc["processing_mode"].update(modes)
        return config

    return edit


@asynccontextmanager
async def gateway(
    mode: Mode,
    edit: Callable[[EnvoyConfig], EnvoyConfig] = shipped,
    *,
    dialect: Dialect | None = None,
    certificates: Certificates | None = None,
) -> AsyncGenerator[Gateway]:
    """Run Envoy with `configs/envoy/<mode>.yaml`, after `edit`, and everything around it."""
    async with AsyncExitStack() as stack:
        servers = [await start_model_server(stack) for _ in range(3)]
        router = JsonRouter(make_route(servers[0].address))
        health = HealthService(ready=True)
        completions: asyncio.Queue[Completion] = asyncio.Queue()
        picker = ExtProcServer(
            router,
            health,
            certificates=certificates,
            options=StreamOptions(dialect=dialect or Proposal()),
            reports=StreamReports(on_complete=completions.put_nowait),
        )
        port = await picker.start(*ANY_PORT)
        stack.push_async_callback(picker.stop, 0)
        config = gateway_config(
            mode,
            gateway=ANY_PORT,
            admin=ANY_PORT,
            picker=("127.0.0.1", port),
            servers=[server.host_port for server in servers],
        )
        config = edit(config)
        envoy = await stack.enter_async_context(EnvoyProcess(config, binary=find_envoy()))
        connector = aiohttp.TCPConnector(limit=0)
        client = await stack.enter_async_context(
            aiohttp.ClientSession(envoy.gateway_url, connector=connector, auto_decompress=True)
        )
        if any(cluster["name"] == "kvatlas" for cluster in config["static_resources"]["clusters"]):
            await pickers_in_use(envoy, client, 1)
        yield Gateway(envoy, client, router, picker, health, servers, completions)


async def start_model_server(stack: AsyncExitStack) -> ModelServer:
    """Start a model server on a free port, until the stack ends."""
    server = ModelServer()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/v1/completions", server.complete)
    app.router.add_route("*", "/v1/stream", server.stream)
    app.router.add_route("GET", "/v1/realtime", server.realtime)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, *ANY_PORT, backlog=2048).start()
    host, port = runner.addresses[0]
    server.address = f"{host}:{port}"
    return server
