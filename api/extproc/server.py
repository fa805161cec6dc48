"""The ext-proc gRPC service: feeds one `ExtProcMachine` a stream and asks the router."""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from uuid import uuid4

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ..errors import ExtProcError
from ..routing import Refusal, RefusalCode, Route, Router, RoutingRequest
from ..tls.certificates import Certificates
from . import ext_proc_pb2 as pb
from .dialect import Dialect, Proposal
from .health import EXT_PROC_SERVICE, HEALTH_SERVICE, HealthService
from .intake import Intake
from .listener import GrpcListener
from .machine import ExtProcMachine
from .stream import AnswerBegun, Completion, StreamOptions

_log = logging.getLogger(__name__)

DEFAULT_MAX_BODY_BYTES = 64 * 1024 * 1024
"""Bounds what one stream can hold. A prompt of 1 M tokens has about 4 MB of text; the rest is room for images."""

_MESSAGE_OVERHEAD_BYTES = 1024 * 1024
"""Room for headers and metadata around a body, so that the body limit answers and not gRPC's message limit."""

_ROUTER_FAILED = Refusal(RefusalCode.INTERNAL, "the endpoint picker failed on this request")


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
        new_request_id: id of a request that came without `x-request-id`.
        on_error: called with a bounded word for each thing that went wrong: `router`, `not_protobuf`,
            `out_of_order`.
        on_begun: called when the first bytes of an answer's body come, at most once for each request.
        on_complete: called once for each request, as soon as its end is known and however it ended.
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
        new_request_id: Callable[[], str] = _new_request_id,
        on_error: Callable[[str], None] = _ignore,
        on_begun: Callable[[AnswerBegun], None] = _ignore,
        on_complete: Callable[[Completion], None] = _ignore,
    ) -> None:
        self._router = router
        self._health = health
        self._options = StreamOptions(
            new_request_id=new_request_id,
            dialect=dialect or Proposal(),
            intake=intake or Intake(),
            max_body_bytes=max_body_bytes,
            read_usage=read_usage,
        )
        self._on_error = on_error
        self._on_begun = on_begun
        self._on_complete = on_complete
        self._listener = GrpcListener(
            "server.extProc",
            (self._handler(), health.handler(), *(services or {}).values()),
            max_message_bytes=max_body_bytes + _MESSAGE_OVERHEAD_BYTES,
            certificates=certificates,
            reflected=(*services, HEALTH_SERVICE) if services else (),
        )

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

    def _handler(self) -> grpc.GenericRpcHandler:
        # Without (de)serializers messages are bytes: answers are prebuilt, and a bad message is ours to count.
        process: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._process)
        return grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {"Process": process})

    async def _process(
        self, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> None:
        machine = ExtProcMachine(self._options)
        try:
            await self._converse(machine, messages, context)
        except ExtProcError as error:
            self._on_error(error.reason)
            await context.abort(error.grpc_status, str(error))
        finally:
            # A client that goes away ends the messages or cancels this task, depending on what it waits for.
            completion = machine.close(now=time.monotonic())
            if completion is not None:
                self._on_complete(completion)

    async def _converse(
        self,
        machine: ExtProcMachine,
        messages: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext[bytes, bytes],
    ) -> None:
        async for data in messages:
            if await self._answer(machine, data, context):
                return

    async def _answer(
        self, machine: ExtProcMachine, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bool:
        """Answers one message and tells whether the stream is over.

        Apart from the loop, so that no local keeps the request body alive while the response is waited for.
        """
        step = machine.receive(_parse(data), now=time.monotonic())
        if step.route is not None:
            # Nothing may wait between the decision and `routed`: a stream cancelled there would lose the decision.
            step = machine.routed(await self._route(step.route), now=time.monotonic())
        if step.begun is not None:
            self._on_begun(step.begun)
        if step.completion is not None:
            self._on_complete(step.completion)
        for reply in step.replies:
            await context.write(reply)
        return step.end

    async def _route(self, request: RoutingRequest) -> Route | Refusal:
        try:
            return await self._router.route(request)
        except Exception as error:  # noqa: BLE001  a fault in one request must cost that request alone
            self._on_error("router")
            # Its place but not its text, which may quote the prompt.
            place = "".join(traceback.format_tb(error.__traceback__))
            _log.error(
                "router failed with %s (request_id=%s)\n%s", type(error).__name__, request.request_id, place
            )
            return _ROUTER_FAILED


def _parse(data: bytes) -> pb.ProcessingRequest:
    try:
        return pb.ProcessingRequest.FromString(data)
    except DecodeError as error:
        raise ExtProcError(
            "not_protobuf", f"message of {len(data)} bytes is not an ext-proc ProcessingRequest"
        ) from error
