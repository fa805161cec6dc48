"""Receivers of OpenTelemetry spans, over gRPC and HTTP, which decode what they get."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

import grpc
import grpc.aio
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_Context = grpc.aio.ServicerContext[ExportTraceServiceRequest, ExportTraceServiceResponse]


@dataclass
class Receiver:
    """A running receiver, and what it got."""

    port: int = 0
    spans: list[Span] = field(default_factory=list[Span])
    resources: list[dict[str, object]] = field(default_factory=list[dict[str, object]])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def named(self, name: str) -> Span:
        """Return the only span of that name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found

    async def export(self, request: ExportTraceServiceRequest, _: _Context) -> ExportTraceServiceResponse:
        self.take(request)
        return ExportTraceServiceResponse()

    async def post(self, request: web.Request) -> web.Response:
        self.take(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(body=ExportTraceServiceResponse().SerializeToString())

    def take(self, request: ExportTraceServiceRequest) -> None:
        for each in request.resource_spans:
            self.resources.append(attributes_of(each.resource.attributes))
            self.spans += [span for scope in each.scope_spans for span in scope.spans]


@contextlib.asynccontextmanager
async def receiving() -> AsyncGenerator[Receiver]:
    """Run a receiver on a free port."""
    receiver, server = Receiver(), grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        receiver.export,
        ExportTraceServiceRequest.FromString,
        ExportTraceServiceResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": method}),))
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def receiving_http() -> AsyncGenerator[Receiver]:
    """Run a receiver for HTTP on a free port."""
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/v1/traces", receiver.post)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.port = runner.addresses[0][1]
    try:
        yield receiver
    finally:
        await runner.cleanup()


def attributes_of(pairs: Iterable[KeyValue]) -> dict[str, object]:
    """Return attributes as plain data."""
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(each) for each in value.array_value.values]
    return getattr(value, kind) if kind is not None else None
