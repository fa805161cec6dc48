"""One ext-proc stream, on any transport: messages in, replies out, without a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from google.protobuf.message import DecodeError
from grpc import StatusCode

from ...routing.router import Overload, Refusal, RefusalCode, RoutingRequest, RoutingResult
from ...tokenization.eventual import Later, recovered
from ..errors import ExtProcError, place_of
from ..http2.call import Responder
from . import ext_proc_pb2 as pb
from .body_frame import is_body
from .machine import ExtProcMachine
from .stream import Step, StreamContext

_log = logging.getLogger(__name__)

MAX_MESSAGE_OVERHEAD_BYTES = 1024 * 1024
"""Budget for headers and metadata around a body, so that the body limit is reached before gRPC's message limit."""

MAX_WAITING = 1024
"""Messages accepted while a request is routed; a gateway waits for the reply after a few."""

MAX_WAITING_BYTES = 1024 * 1024
"""Length of these messages together: they are no bodies of requests."""

_ROUTER_FAILED = Refusal(RefusalCode.INTERNAL, "the endpoint picker failed on this request")


class ExtProcCall:
    """Drives the machine of one stream. See `http2.call.Call`.

    Args:
        context: shared by all streams of a server.
        responder: the gateway.
    """

    def __init__(self, context: StreamContext, responder: Responder) -> None:
        self._context, self._responder = context, responder
        self._machine = ExtProcMachine(context.options, self._revoked)
        self._routing: asyncio.Task[None] | None = None
        self._waiting: deque[bytes | None] = deque()
        self._n_waiting_bytes = 0
        self._is_over = False

    def received(self, message: bytes) -> None:
        """See `Call`."""
        if self._is_over:
            return
        if self._routing is None:
            self._take(message)
        else:
            self._wait_with(message)

    def ended(self) -> None:
        """See `Call`."""
        if self._routing is None:
            self._end(StatusCode.OK)
        else:
            self._waiting.append(None)

    def gone(self) -> None:
        """See `Call`."""
        self._end(StatusCode.CANCELLED)

    def _wait_with(self, message: bytes) -> None:
        self._n_waiting_bytes += len(message)
        if len(self._waiting) < MAX_WAITING and self._n_waiting_bytes <= MAX_WAITING_BYTES:
            self._waiting.append(message)
        else:
            limits = f"{MAX_WAITING} messages or {MAX_WAITING_BYTES} bytes"
            self._end(StatusCode.RESOURCE_EXHAUSTED, f"more than {limits} before an answer")

    def _revoked(self, reason: Overload) -> None:
        """Route the request without waiting for more of its body."""
        step = self._machine.revoked(reason)
        if step.route is not None:
            self._route(step.route)

    def _take(self, message: bytes) -> None:
        try:
            step = self._machine.receive(_parse(message), n_bytes=len(message), now=time.monotonic())
        except ExtProcError as error:
            self._context.reports.on_error(error.reason)
            self._end(error.grpc_status, str(error))
            return
        if step.route is None:
            self._act(step)
        else:
            self._route(step.route)

    def _route(self, request: RoutingRequest) -> None:
        # A fault in one request must cost that request alone.
        result = recovered(
            Exception, lambda error: self._failed(error, request), self._context.router.route, request
        )
        if isinstance(result, Later):
            self._responder.pause_reading()
            self._routing = asyncio.get_running_loop().create_task(self._wait(result))
        else:
            self._act(self._machine.routed(result.value, now=time.monotonic()))

    async def _wait(self, result: Later[RoutingResult]) -> None:
        # Nothing may wait between the decision and its step: a stream cancelled there would lose the decision.
        try:
            step = self._machine.routed(await result, now=time.monotonic())
        except asyncio.CancelledError:
            self._close()
            raise
        self._routing = None
        self._responder.resume_reading()
        self._act(step)
        waiting, self._waiting = self._waiting, deque()
        self._n_waiting_bytes = 0
        for message in waiting:
            if message is None:
                self.ended()
            else:
                self.received(message)

    def _act(self, step: Step) -> None:
        if step.begun is not None:
            self._context.reports.on_begun(step.begun)
        if step.completion is not None:
            self._context.reports.on_complete(step.completion)
        if self._is_over:  # the client left after the request was routed, but before this step
            self._close()
            return
        for reply in step.replies:
            self._responder.send(reply)
        if step.end:
            self._end(StatusCode.OK)

    def _end(self, status: StatusCode, text: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self._waiting.clear()
        self._responder.finish(status, text)
        if self._routing is None:
            self._close()
        else:
            # The task closes the stream. It is cancelled after its first step: without that step, Python warns of a
            # coroutine that was never awaited.
            asyncio.get_running_loop().call_soon(self._routing.cancel)

    def _close(self) -> None:
        completion = self._machine.close(now=time.monotonic())
        if completion is not None:
            self._context.reports.on_complete(completion)

    def _failed(self, error: Exception, request: RoutingRequest) -> Refusal:
        self._context.reports.on_error("router")
        _log.error(
            "router failed with %s (request_id=%r)\n%s",
            type(error).__name__, request.request_id, place_of(error),
        )  # fmt: skip
        return _ROUTER_FAILED


def _parse(message: bytes) -> pb.ProcessingRequest:
    if len(message) > MAX_MESSAGE_OVERHEAD_BYTES and not is_body(message, MAX_MESSAGE_OVERHEAD_BYTES):
        raise ExtProcError(
            "too_large",
            f"message of {len(message)} bytes has more than {MAX_MESSAGE_OVERHEAD_BYTES} bytes beside a body",
        )
    try:
        return pb.ProcessingRequest.FromString(message)
    except DecodeError as error:
        raise ExtProcError(
            "not_protobuf", f"message of {len(message)} bytes is not an ext-proc ProcessingRequest"
        ) from error
