"""gRPC health over real gRPC, beside ext-proc and alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.listener import GrpcListener
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.configs.listeners import ExtProcTransport
from support.ext_proc import FixedRouter, make_route
from support.waiting import PATIENCE_S

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
READINESS_NAMES = [
    "",
    "readiness",
    "envoy.service.ext_proc.v3.ExternalProcessor",
    "inference-extension",
    "never-heard-of",
]


@asynccontextmanager
async def health_alone(health: HealthService) -> AsyncGenerator[grpc.aio.Channel]:
    listener = GrpcListener("server.health", [health.handler()])
    port = await listener.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await listener.stop(0)


@asynccontextmanager
async def health_beside_ext_proc(health: HealthService) -> AsyncGenerator[grpc.aio.Channel]:
    async with on_transport(health, "http2") as channel:
        yield channel


@asynccontextmanager
async def health_beside_ext_proc_on_grpc(health: HealthService) -> AsyncGenerator[grpc.aio.Channel]:
    async with on_transport(health, "grpc") as channel:
        yield channel


@asynccontextmanager
async def on_transport(
    health: HealthService, transport: ExtProcTransport
) -> AsyncGenerator[grpc.aio.Channel]:
    server = ExtProcServer(FixedRouter(make_route("10.0.0.1:8000")), health, transport=transport)
    port = await server.start("127.0.0.1", 0)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def check(channel: grpc.aio.Channel, service: str) -> HealthCheckResponse.ServingStatus:
    method = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return (await method(HealthCheckRequest(service=service))).status


def watch(
    channel: grpc.aio.Channel, service: str
) -> grpc.aio.UnaryStreamCall[HealthCheckRequest, HealthCheckResponse]:
    method = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return method(HealthCheckRequest(service=service))


@pytest.mark.parametrize("serving", [health_alone, health_beside_ext_proc, health_beside_ext_proc_on_grpc])
async def test_every_name_but_liveness_answers_readiness(
    serving: Callable[[HealthService], AbstractAsyncContextManager[grpc.aio.Channel]],
) -> None:
    health = HealthService()
    async with serving(health) as channel:
        for ready, status in ((False, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
            health.ready = ready
            assert health.ready is ready
            assert [await check(channel, name) for name in READINESS_NAMES] == [status] * len(READINESS_NAMES)
            assert await check(channel, "liveness") == SERVING


async def test_only_known_names_answer_when_replicas_elect_a_leader() -> None:
    health = HealthService(elects=True)
    async with health_alone(health) as channel:
        for ready, status in ((False, NOT_SERVING), (True, SERVING)):
            health.ready = ready
            found = [await check(channel, name) for name in READINESS_NAMES]
            assert found == [status] * 3 + [HealthCheckResponse.SERVICE_UNKNOWN] * 2
            assert await check(channel, "liveness") == SERVING


@pytest.mark.parametrize(("elects", "n_listed"), [(False, 4), (True, 3)], ids=["alone", "elected"])
async def test_list_tells_the_status_of_the_known_names(elects: bool, n_listed: int) -> None:
    async with health_alone(HealthService(elects=elects)) as channel:
        messages: Any = health_pb2  # those of List are in no type stubs
        method = channel.unary_unary(
            "/grpc.health.v1.Health/List",
            request_serializer=messages.HealthListRequest.SerializeToString,
            response_deserializer=messages.HealthListResponse.FromString,
        )
        statuses = (await method(messages.HealthListRequest())).statuses

    assert {name: answer.status for name, answer in statuses.items()} == {
        "liveness": SERVING,
        **dict.fromkeys(READINESS_NAMES[:n_listed], NOT_SERVING),
    }


async def test_watch_tells_the_status_and_each_change() -> None:
    health = HealthService()
    async with health_alone(health) as channel:
        readiness, liveness = watch(channel, "readiness"), watch(channel, "liveness")
        heard = [await anext(aiter(readiness)), await anext(aiter(liveness))]
        health.ready = True
        heard.append(await anext(aiter(readiness)))
        health.ready = True
        health.ready = False
        heard.append(await anext(aiter(readiness)))
        readiness.cancel()
        liveness.cancel()

    assert [answer.status for answer in heard] == [NOT_SERVING, SERVING, SERVING, NOT_SERVING]


async def test_open_watch_does_not_hold_up_a_stopping_server() -> None:
    health = HealthService(ready=True)
    server = ExtProcServer(FixedRouter(make_route("10.0.0.1:8000")), health)
    port = await server.start("127.0.0.1", 0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = watch(channel, "")
        await call.read()

        async with asyncio.timeout(PATIENCE_S):
            await server.stop(2 * PATIENCE_S)

        assert await call.code() == grpc.StatusCode.OK
