"""A running ext-proc server with a client of it, and what the server reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import HealthService
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.server import ExtProcServer
from kvatlas.api.extproc.stream import StreamOptions, StreamReports
from kvatlas.routing.outcome import Completion, ResponseBegun
from kvatlas.routing.router import Router, RoutingRequest, RoutingResult
from kvatlas.tokenization.eventual import Eventual, Later
from support.ext_proc import FixedRouter, make_route

BODY = b'{"model":"m","prompt":"p"}'
ROUTE = make_route("10.0.0.1:8000")
Call = grpc.aio.StreamStreamCall[bytes, pb.ProcessingResponse]


@dataclass
class RunningServer:
    """A running server, what it reported, and a client of it."""

    server: ExtProcServer
    port: int
    open: Callable[[], Call]
    errors: list[str]
    begun: list[ResponseBegun]
    completions: asyncio.Queue[Completion]


@asynccontextmanager
async def serving(
    router: Router, *, max_body_bytes: int = 1_000_000, intake: Intake | None = None
) -> AsyncGenerator[RunningServer]:
    errors: list[str] = []
    begun: list[ResponseBegun] = []
    completions: asyncio.Queue[Completion] = asyncio.Queue()
    server = ExtProcServer(
        router,
        HealthService(ready=True),
        options=StreamOptions(intake=intake or Intake(), max_body_bytes=max_body_bytes),
        reports=StreamReports(errors.append, begun.append, completions.put_nowait),
    )
    port = await server.start("127.0.0.1", 0)
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        try:
            yield RunningServer(server, port, process, errors, begun, completions)
        finally:
            await server.stop(0)


async def send(call: Call, *messages: pb.ProcessingRequest) -> None:
    for message in messages:
        await call.write(message.SerializeToString())


async def receive(call: Call, count: int) -> list[pb.ProcessingResponse]:
    received: list[pb.ProcessingResponse] = []
    for _ in range(count):
        message = await call.read()
        assert isinstance(message, pb.ProcessingResponse), (
            f"stream ended after {len(received)} of {count} replies"
        )
        received.append(message)
    return received


class WaitingRouter(FixedRouter):
    """Routes once it is released."""

    def __init__(self) -> None:
        super().__init__(ROUTE)
        self.waiting = asyncio.Event()
        self.released = asyncio.Event()

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        return Later(self._route(request))

    async def _route(self, request: RoutingRequest) -> RoutingResult:
        self.waiting.set()
        await self.released.wait()
        return await super().route(request)
