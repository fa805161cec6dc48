"""kvatlas's ext-proc server behind a real Envoy that runs the shipped configurations."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Literal

import aiohttp
import pytest
from aiohttp import web

from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.machine import Completion, Outcome
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.api.routing import Refusal, RefusalCode, Route, RoutingRequest
from kvatlas.sim.envoy import (
    EnvoyConfig,
    EnvoyProcess,
    find_envoy,
    gateway_config,
    remove_filter,
    without_picker,
)
from support.ext_proc import FixedRouter, make_route

DESTINATION = "x-gateway-destination-endpoint"
ANY_PORT = ("127.0.0.1", 0)
Mode = Literal["duplex", "buffered"]

both_modes = pytest.mark.parametrize("mode", ["duplex", "buffered"])


@dataclass
class ModelServer:
    """A model server that keeps what it was sent."""

    address: str = ""
    status: int = 200
    bodies: list[bytes] = field(default_factory=list[bytes])
    destinations: list[list[str]] = field(default_factory=list[list[str]])
    released: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.destinations.append(request.headers.getall(DESTINATION, []))
        return web.json_response({"server": self.address}, status=self.status)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b"data: 1\n\n")
        await self.released.wait()
        await answer.write(b"data: 2\n\n")
        return answer


class JsonRouter(FixedRouter):
    """Refuses a body that is not JSON, as the real one does."""

    async def route(self, request: RoutingRequest) -> Route | Refusal:
        answer = await super().route(request)
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
        """Sends a completion request and returns who answered it."""
        async with self.client.post("/v1/completions", json={"prompt": "p"}, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            return str((await answer.json())["server"])

    async def picker_is_out(self) -> None:
        """Returns once Envoy's health checks have found that the picker is not to be used."""
        stat = "cluster.kvatlas.membership_healthy"
        async with asyncio.timeout(10):
            while True:
                async with self.client.get(
                    f"{self.envoy.admin_url}/stats", params={"filter": stat}
                ) as answer:
                    if (await answer.text()).strip() == f"{stat}: 0":
                        return
                await asyncio.sleep(0.02)


async def start_model_server(stack: AsyncExitStack) -> ModelServer:
    server = ModelServer()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/v1/completions", server.complete)
    app.router.add_post("/v1/stream", server.stream)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, *ANY_PORT).start()
    host, port = runner.addresses[0]
    server.address = f"{host}:{port}"
    return server


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def shipped(config: EnvoyConfig) -> EnvoyConfig:
    return config


def trusting_clients(config: EnvoyConfig) -> EnvoyConfig:
    remove_filter(config, "strip_destination")
    return config


def with_subset_from_header(config: EnvoyConfig) -> EnvoyConfig:
    """The usual way to give Envoy a subset hint by hand."""
    rule = {
        "header": "x-subset",
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": "x-gateway-destination-endpoint-subset",
            "type": "STRING",
        },
    }
    kind = "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config"
    chain = config["static_resources"]["listeners"][0]["filter_chains"][0]
    chain["filters"][0]["typed_config"]["http_filters"].insert(
        0,
        {
            "name": "envoy.filters.http.header_to_metadata",
            "typed_config": {"@type": kind, "request_rules": [rule]},
        },
    )
    return config


@asynccontextmanager
async def gateway(
    mode: Mode, edit: Callable[[EnvoyConfig], EnvoyConfig] = shipped
) -> AsyncGenerator[Gateway]:
    async with AsyncExitStack() as stack:
        servers = [await start_model_server(stack) for _ in range(3)]
        router = JsonRouter(make_route(servers[0].address))
        health = HealthService(ready=True)
        completions: asyncio.Queue[Completion] = asyncio.Queue()
        picker = ExtProcServer(router, health, on_complete=completions.put_nowait)
        port = await picker.start(*ANY_PORT)
        stack.push_async_callback(picker.stop, 0)
        config = gateway_config(
            mode,
            gateway=ANY_PORT,
            admin=ANY_PORT,
            picker=("127.0.0.1", port),
            servers=[("127.0.0.1", port_of(server.address)) for server in servers],
        )
        envoy = await stack.enter_async_context(EnvoyProcess(edit(config), binary=find_envoy()))
        client = await stack.enter_async_context(aiohttp.ClientSession(envoy.gateway_url))
        yield Gateway(envoy, client, router, picker, health, servers, completions)


@both_modes
async def test_request_reaches_the_chosen_server(mode: Mode) -> None:
    async with gateway(mode) as at:
        for server in at.servers * 2:
            at.router.answer = make_route(server.address)
            assert await at.served_by() == server.address

        assert [server.bodies for server in at.servers] == [[b'{"prompt": "p"}'] * 2] * 3
        assert [request.body for request in at.router.asked] == [b'{"prompt": "p"}'] * 6
        assert {request.path for request in at.router.asked} == {"/v1/completions"}


@both_modes
async def test_request_without_body_reaches_the_chosen_server(mode: Mode) -> None:
    async with gateway(mode) as at:
        for server in at.servers:
            at.router.answer = make_route(server.address)
            async with at.client.get("/v1/completions") as answer:
                assert (await answer.json())["server"] == server.address

        assert not any(request.has_body for request in at.router.asked)


@both_modes
async def test_next_address_is_tried_when_a_server_answers_503(mode: Mode) -> None:
    async with gateway(mode) as at:
        first, second, third = at.servers
        second.status = 503
        at.router.answer = make_route(second.address, third.address, first.address)

        assert await at.served_by() == third.address
        assert len(second.bodies) == 1


@both_modes
async def test_body_of_1_5_mb_arrives_unchanged(mode: Mode) -> None:
    body = json.dumps({"prompt": "".join(chr(97 + n % 26) for n in range(1_500_000))}).encode()
    async with gateway(mode) as at:
        async with at.client.post("/v1/completions", data=BytesIO(body)) as answer:
            assert answer.status == 200

        assert at.servers[0].bodies == [body]
        assert at.router.asked[0].body == body


@both_modes
async def test_events_pass_as_they_come(mode: Mode) -> None:
    async with gateway(mode) as at, at.client.post("/v1/stream", json={"stream": True}) as answer:
        first = await answer.content.readuntil(b"\n\n")
        at.servers[0].released.set()  # only now the server goes on
        rest = await answer.content.read()

        assert answer.headers["content-type"] == "text/event-stream"
        assert (first, rest) == (b"data: 1\n\n", b"data: 2\n\n")


@both_modes
async def test_bad_json_is_answered_400(mode: Mode) -> None:
    async with gateway(mode) as at, at.client.post("/v1/completions", data=b"{") as answer:
        assert answer.status == 400
        assert await answer.text() == "inference error: BadRequest - request body is not JSON"
        assert not any(server.bodies for server in at.servers)


@both_modes
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_no_endpoint_is_answered_503(mode: Mode, method: str) -> None:
    async with gateway(mode) as at:
        at.router.answer = Refusal(
            RefusalCode.SERVICE_UNAVAILABLE, "none", dropped_reason="rejected-no-endpoints"
        )
        data = b"{}" if method == "POST" else None
        async with at.client.request(method, "/v1/completions", data=data) as answer:
            assert answer.status == 503
            assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
            assert await answer.text() == "inference error: ServiceUnavailable - none"


@both_modes
@pytest.mark.parametrize("edit", [shipped, trusting_clients])
async def test_destination_sent_by_the_client_is_overwritten(
    mode: Mode, edit: Callable[[EnvoyConfig], EnvoyConfig]
) -> None:
    async with gateway(mode, edit) as at:
        chosen, wished, _ = (server.address for server in at.servers)

        assert await at.served_by({DESTINATION: wished}) == chosen
        assert at.servers[0].destinations == [[chosen]]
        assert DESTINATION not in at.router.asked[0].headers


@both_modes
async def test_subset_hint_reaches_the_router(mode: Mode) -> None:
    async with gateway(mode, with_subset_from_header) as at:
        await at.served_by({"x-subset": "10.0.0.1, 10.0.0.2:8000"})
        await at.served_by()

        assert [request.subset for request in at.router.asked] == [{"10.0.0.1", "10.0.0.2:8000"}, None]


@pytest.mark.slow
@both_modes
@pytest.mark.parametrize("reason", ["stopped", "not_ready"])
async def test_traffic_flows_round_robin_when_the_picker_is_out(mode: Mode, reason: str) -> None:
    async with gateway(mode) as at:
        assert await at.served_by() == at.servers[0].address
        if reason == "stopped":
            await at.picker.stop(0)
        else:
            at.health.ready = False
        await at.picker_is_out()

        wish = {DESTINATION: at.servers[1].address}  # a client's wish must not count even now
        served = {await at.served_by(wish) for _ in range(6)}

        assert served == {server.address for server in at.servers}
        assert len(at.router.asked) == 1


async def test_gateway_without_picker_goes_round_robin() -> None:
    async with gateway("duplex", without_picker) as at:
        served = {await at.served_by() for _ in range(6)}

        assert served == {server.address for server in at.servers}
        assert at.router.asked == []


async def test_duplex_tells_when_the_response_ended_and_who_served() -> None:
    async with gateway("duplex") as at:
        await at.served_by()
        completion = await at.completions.get()

        assert completion.outcome is Outcome.COMPLETED
        assert completion.served == at.servers[0].address
        assert completion.route == at.router.answer


async def test_duplex_tells_that_the_client_went_away() -> None:
    async with gateway("duplex") as at:
        async with at.client.post("/v1/stream", json={"stream": True}) as answer:
            await answer.content.readuntil(b"\n\n")
            answer.close()

        assert (await at.completions.get()).outcome is Outcome.ABORTED


async def test_buffered_shows_no_response() -> None:
    async with gateway("buffered") as at:
        await at.served_by()

        assert (await at.completions.get()).outcome is Outcome.ROUTED
