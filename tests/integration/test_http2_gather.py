"""Threads that read nothing but chunks leave the sockets for a moment; what Python orders does not wait for that."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.passing import Reading, passage
from kvatlas.api.extproc.server import ExtProcServer, message_limit
from kvatlas.api.extproc.stream import StreamOptions
from kvatlas.api.http2.call import Responder
from kvatlas.api.http2.context import Limits, Times
from kvatlas.api.http2.native import has_http2
from support.ext_proc import DUPLEX, request_body, request_headers, response_body, response_headers
from support.ext_proc_server import BODY, Call, WaitingRouter, receive, send
from support.http2 import framed
from support.peer import data, opening, peer_of
from support.waiting import until

if TYPE_CHECKING:
    from kvatlas.api.http2._native import Passage

pytestmark = pytest.mark.skipif(not has_http2(), reason="needs libnghttp2")

REQUEST = [request_headers(config=DUPLEX), request_body(BODY, end=True)]
HOUR_S = 3600.0
MAX_WORK = 128
"""Messages that a connection takes in one turn; see session.h."""


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
        await send(streaming, response_body(b"data: 0\n\n"))
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


class Held:
    """A call that pauses at its first message; see `Call`."""

    def __init__(self, responder: Responder) -> None:
        self.responder, self.messages = responder, list[bytes]()

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        if len(self.messages) == 1:
            self.responder.pause_reading()

    def passed(self, report: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def gone(self) -> None:
        pass

    def passage(self) -> Passage | None:
        self.responder.resume_reading()
        return passage(Reading(), gives_back=True, has_begun=True)


async def test_thread_does_not_rest_while_input_waits_for_its_turn() -> None:
    from kvatlas.api.http2.listener import Http2Listener  # noqa: PLC0415 - cannot be imported if it was not built

    calls: list[Held] = []

    def opens(responder: Responder) -> Held:
        calls.append(Held(responder))
        return calls[-1]

    listener = Http2Listener(
        "server.extProc",
        methods={"/test/Held": opens},
        limits=Limits(1 << 16, times=Times(gather_s=HOUR_S), n_threads=1),
        account=Intake(),
    )
    port = await listener.start("127.0.0.1", 0)
    chunk = framed(response_body(b"data: 1\n\n").SerializeToString())
    async with peer_of(port) as first, peer_of(port) as second:
        first.write(opening(1, "/test/Held") + data(1, framed(b"first")))
        await until(lambda: calls and calls[0].messages, what="the first message")
        first.write(data(1, chunk * MAX_WORK + framed(b"last")))
        await first.ponged()

        calls[0].responder.pass_messages(calls[0].passage)
        await until(lambda: len(calls[0].messages) == 2, what="the message after the chunks")

        await second.ponged()
        assert calls[0].messages == [b"first", b"last"]
        assert second.n_pongs == 1
    await listener.stop(0)
