"""One ext-proc stream, on any transport: messages in, replies out, without a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from grpc import StatusCode

from ...routing.router import Overload, Refusal, RefusalCode, RoutingRequest, RoutingResult
from ...tokenization.eventual import Later, recovered
from ..errors import ExtProcError, place_of
from ..http2.call import Responder
from . import body_frame
from . import ext_proc_pb2 as pb
from .machine import ExtProcMachine
from .replies import LongReply, Replies
from .stream import Step, StreamContext

if TYPE_CHECKING:
    from ..http2._native import Passage

_log = logging.getLogger(__name__)

MAX_MESSAGE_OVERHEAD_BYTES = 1024 * 1024
"""Budget for headers and metadata around a body, so that the body limit is reached before gRPC's message limit."""

SENT_AT_ONCE_BYTES = 256 * 1024
"""Piece of a long reply that is sent at once, in a fraction of a millisecond."""

MAX_WAITING = 1024
"""Messages accepted while a request is routed or a long reply is sent; a gateway waits for the reply after a few."""

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
        self._task: asyncio.Task[None] | None = None
        """Routes the request, or sends a long reply; messages wait for its end."""
        self._waiting: deque[bytes | None] = deque()
        self._n_waiting_bytes = 0
        self._is_over = False

    def received(self, message: bytes) -> None:
        """See `Call`."""
        if self._is_over:
            return
        if self._task is None:
            self._take(message)
        else:
            self._wait_with(message)

    def ended(self) -> None:
        """See `Call`."""
        if self._task is None:
            self._end(StatusCode.OK)
        else:
            self._waiting.append(None)

    def passed(self, report: bytes) -> None:
        """See `Call`."""
        if not self._is_over:
            self._act(self._machine.passed(report, now=time.monotonic()))

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
            parsed, body = _parse(message)
            step = self._machine.receive(parsed, n_bytes=len(message), now=time.monotonic(), body=body)
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
            self._begin(self._wait(result))
        else:
            self._act(self._machine.routed(result.value, now=time.monotonic()))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._responder.pause_reading()
        self._task = asyncio.get_running_loop().create_task(work)

    async def _wait(self, result: Later[RoutingResult]) -> None:
        # Nothing may wait between the decision and its step: a stream cancelled there would lose the decision.
        try:
            step = self._machine.routed(await result, now=time.monotonic())
        except asyncio.CancelledError:
            self._close()
            raise
        self._go_on(step)

    async def _send_long(self, reply: LongReply, others: Replies) -> None:
        intake = self._context.options.intake
        intake.carry(reply.n_bytes)
        n_bytes = 0
        try:
            for message in reply.messages:
                n_bytes += len(message)
                if n_bytes >= SENT_AT_ONCE_BYTES:
                    n_bytes = 0
                    # Others are served first: the message may be long, and sending it copies it.
                    await asyncio.sleep(0)
                    await self._responder.drained()
                    if self._is_over:
                        break
                self._responder.send(message)
        except asyncio.CancelledError:
            self._close()
            raise
        finally:
            intake.carry(-reply.n_bytes)
        self._go_on(Step(others))

    def _go_on(self, step: Step) -> None:
        """Act after the task, and take the messages that waited for it."""
        self._task = None
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
        replies = iter(step.replies)
        for reply in replies:
            if isinstance(reply, LongReply):
                self._begin(self._send_long(reply, tuple(replies)))
                return
            self._responder.send(reply)
        if step.passes:
            self._responder.pass_messages(self._passage)
        if step.end:
            self._end(StatusCode.OK)

    def _passage(self) -> Passage | None:
        return self._machine.passage() if self._task is None else None

    def _end(self, status: StatusCode, text: str = "") -> None:
        if self._is_over:
            return
        self._is_over = True
        self._waiting.clear()
        self._responder.finish(status, text)
        if self._task is None:
            self._close()
        else:
            # The task closes the stream. It is cancelled after its first step: without that step, Python warns of a
            # coroutine that was never awaited.
            asyncio.get_running_loop().call_soon(self._task.cancel)

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


def _parse(message: bytes) -> tuple[pb.ProcessingRequest, bytes | None]:
    """Return the decoded message, and the body of a long one, which is no more in the message."""
    body = None
    n_bytes = len(message)
    if n_bytes > MAX_MESSAGE_OVERHEAD_BYTES:
        parts = body_frame.split(message, MAX_MESSAGE_OVERHEAD_BYTES)
        if parts is None:
            raise ExtProcError(
                "too_large",
                f"message of {n_bytes} bytes has more than {MAX_MESSAGE_OVERHEAD_BYTES} bytes beside a body",
            )
        message, body = parts
    try:
        return pb.ProcessingRequest.FromString(message), body
    except DecodeError as error:
        raise ExtProcError(
            "not_protobuf", f"message of {n_bytes} bytes is not an ext-proc ProcessingRequest"
        ) from error
