"""Threads that read nothing but chunks leave the sockets for a moment; what Python orders does not wait for that."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.server import ExtProcServer, message_limit
from kvatlas.api.extproc.stream import StreamOptions
from kvatlas.api.http2.context import Limits, Times
from kvatlas.api.http2.native import has_http2
from support.ext_proc import DUPLEX, request_body, request_headers, response_body, response_headers
from support.ext_proc_server import BODY, Call, WaitingRouter, receive, send

pytestmark = pytest.mark.skipif(not has_http2(), reason="needs libnghttp2")

REQUEST = [request_headers(config=DUPLEX), request_body(BODY, end=True)]
HOUR_S = 3600.0


def opened(channel: grpc.aio.Channel) -> Call:
    process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
        "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
        response_deserializer=pb.ProcessingResponse.FromString,
    )
    return process()


async def test_decision_goes_out_while_the_thread_gathers_chunks() -> None:
    router = WaitingRouter()
    server = ExtProcServer(
        router,
        HealthService(ready=True),
        transport="http2",
        options=StreamOptions(),
        limits=Limits(message_limit(1 << 20), times=Times(gather_s=HOUR_S), n_threads=1),
    )
    port = await server.start("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        apart = [("grpc.use_local_subchannel_pool", 1)]
        first, second = [
            await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=apart))
            for _ in range(2)
        ]
        healthy: grpc.aio.UnaryUnaryMultiCallable[HealthCheckRequest, bytes] = first.unary_unary(
            "/grpc.health.v1.Health/Check", request_serializer=HealthCheckRequest.SerializeToString
        )
        router.released.set()
        streaming = opened(first)
        await send(streaming, *REQUEST)
        await receive(streaming, 2)

        router.released.clear()
        router.waiting.clear()
        waiting = opened(second)
        await send(waiting, *REQUEST)
        await router.waiting.wait()

        await send(streaming, response_headers(("content-type", "text/event-stream")))
        await receive(streaming, 1)
        for _ in range(2):  # what was ordered before the second reply is done: the response passes
            await healthy(HealthCheckRequest())
        await send(streaming, response_body(b"data: 1\n\n"))
        await receive(streaming, 1)
        await send(streaming, response_body(b"data: 2\n\n"))
        next_chunk = asyncio.create_task(receive(streaming, 1))

        router.released.set()
        await receive(waiting, 2)

        assert not next_chunk.done(), "the thread has read again"
        next_chunk.cancel()
        await server.stop(0)  # nor does the end wait
