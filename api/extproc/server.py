"""The ext-proc gRPC service, on the transport that the machine has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

import grpc
import grpc.aio

from ...configs.listeners import ExtProcTransport
from ...routing.outcome import Completion, ResponseBegun
from ...routing.router import Router
from ..errors import ExtProcError, ListenError
from ..http2.native import has_http2
from ..tls.certificates import Certificates
from .call import ExtProcCall
from .conversation import Circle, Conversation
from .dialect import Dialect, Proposal
from .health import EXT_PROC_SERVICE, HEALTH_SERVICE, HealthService
from .intake import Intake
from .listener import GrpcListener, reflection
from .stream import StreamOptions

if TYPE_CHECKING:
    from ..http2.listener import Http2Listener

DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024
"""Bounds what one stream can hold. A prompt of 1 M tokens has about 4 MB of text; the rest is room for images."""

_MESSAGE_OVERHEAD_BYTES = 1024 * 1024
"""Room for headers and metadata around a body, so that the body limit answers and not gRPC's message limit."""

_PROCESS = "Process"


def _new_request_id() -> str:
    return str(uuid4())


def _ignore(_: object) -> None:
    return


class ExtProcServer:
    """Endpoint picker on one port, with gRPC health beside it.

    Args:
        router: decides where requests go.
        health: answers health checks on the same port; its readiness is the caller's to set.
        services: further gRPC services on the port, by name, which reflection describes.
        certificates: shown to clients; None to talk in the clear.
        intake: what all streams together may hold; None for the default.
        dialect: how the protocol is spoken.
        max_body_bytes: longest request body; a longer one is refused with 413.
        read_usage: read token counts out of responses.
        transport: what carries the calls; auto: `http2` where the machine has what it needs.
        new_request_id: id of a request that came without `x-request-id`.
        on_error: called with a bounded word for each thing that went wrong: `router`, `not_protobuf`,
            `out_of_order`.
        on_begun: called when the first bytes of an answer's body come, at most once for each request.
        on_complete: called once for each request, as soon as its end is known and however it ended.

    Raises:
        ListenError: the transport that is asked for cannot be had on this machine.
    """

    def __init__(
        self,
        router: Router,
        health: HealthService,
        *,
        services: Mapping[str, grpc.GenericRpcHandler] | None = None,
        certificates: Certificates | None = None,
        intake: Intake | None = None,
        dialect: Dialect | None = None,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
        read_usage: bool = True,
        transport: ExtProcTransport = "auto",
        new_request_id: Callable[[], str] = _new_request_id,
        on_error: Callable[[str], None] = _ignore,
        on_begun: Callable[[ResponseBegun], None] = _ignore,
        on_complete: Callable[[Completion], None] = _ignore,
    ) -> None:
        self._health = health
        options = StreamOptions(
            new_request_id=new_request_id,
            dialect=dialect or Proposal(),
            intake=intake or Intake(),
            max_body_bytes=max_body_bytes,
            read_usage=read_usage,
        )
        self._circle = Circle(options, router, on_error, on_begun, on_complete)
        if transport == "auto":
            transport = "http2" if has_http2() else "grpc"
        elif transport == "http2" and not has_http2():
            raise ListenError(
                "extProc.transport: http2 needs libnghttp2.so.14 (Debian: libnghttp2-14) and kvatlas built where a C++20 "
                "compiler is; install them, or set auto"
            )
        self.transport: ExtProcTransport = transport
        """What carries the calls."""
        handlers = [health.handler(), *(services or {}).values()]
        if services:
            handlers.append(reflection((*services, HEALTH_SERVICE)))
        self._listener = self._made_listener(handlers, max_body_bytes + _MESSAGE_OVERHEAD_BYTES, certificates)

    async def start(self, host: str, port: int) -> int:
        """Listens on `host:port` (port 0: a free one) and returns the port.

        Raises:
            ListenError: the address is taken or not one of this machine's.
        """
        return await self._listener.start(host, port)

    async def stop(self, grace_s: float) -> None:
        """Takes no new requests and waits at most `grace_s` seconds for those in flight, responses included."""
        self._health.end_watches()
        await self._listener.stop(grace_s)

    def _made_listener(
        self,
        handlers: list[grpc.GenericRpcHandler],
        max_message_bytes: int,
        certificates: Certificates | None,
    ) -> Http2Listener | GrpcListener:
        if self.transport == "http2":
            from ..http2.listener import Http2Listener  # noqa: PLC0415 - cannot be imported where it was not built

            return Http2Listener(
                "server.extProc",
                methods={f"/{EXT_PROC_SERVICE}/{_PROCESS}": partial(ExtProcCall, self._circle)},
                handlers=handlers,
                max_message_bytes=max_message_bytes,
                certificates=certificates,
            )
        return GrpcListener(
            "server.extProc",
            (self._handler(), *handlers),
            max_message_bytes=max_message_bytes,
            certificates=certificates,
        )

    def _handler(self) -> grpc.GenericRpcHandler:
        # Without (de)serializers messages are bytes: answers are prebuilt, and a bad message is ours to count.
        process: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._process)
        return grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {_PROCESS: process})

    async def _process(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        conversation = Conversation(self._circle)
        try:
            async for data in messages:
                if await _answered(conversation, data, context):
                    return
        except ExtProcError as error:
            await context.abort(error.grpc_status, str(error))
        finally:
            # A client that goes away ends the messages or cancels this task, depending on what it waits for.
            conversation.close()


async def _answered(
    conversation: Conversation, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
) -> bool:
    """Answers one message and tells whether the stream is over.

    Apart from the loop, so that no local keeps the request body alive while the response is waited for.
    """
    step = conversation.receive(data)
    if step.route is not None:
        step = conversation.routed(await conversation.route(step.route))
    for reply in step.replies:
        await context.write(reply)
    return step.end
