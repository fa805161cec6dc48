"""One ext-proc stream, on any transport: messages in, replies out, without a task of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from grpc import StatusCode

from ...routing.router import Overload, Refusal, RefusalCode, RoutingRequest, RoutingResult
from ...tokenization.eventual import Known, Later
from ..errors import ExtProcError, place_of
from ..http2.call import Responder
from .machine import ExtProcMachine
from .messages import read_message
from .replies import LongReply, Replies
from .stream import Step, StreamContext

if TYPE_CHECKING:
    from ..http2._native import Passage

_log = logging.getLogger(__name__)

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

    __slots__ = ("_context", "_is_over", "_machine", "_n_waiting_bytes", "_responder", "_task", "_waiting")

    def __init__(self, context: StreamContext, responder: Responder) -> None:
        self._context, self._responder = context, responder
        self._machine = ExtProcMachine(context.options, self._revoked)
        self._task: asyncio.Task[None] | None = None
        """Routes the request, or sends a long reply; messages wait for its end."""
        self._waiting: list[bytes | None] | None = None
        self._n_waiting_bytes = 0
        self._is_over = False

    def received(self, message: bytes) -> None:
        """See `Call`."""
        if self._is_over:
            return
        if self._task is not None:
            self._wait_with(message)
            return
        try:
            step = self._machine.receive(read_message(message), now=time.monotonic())
        except ExtProcError as error:
            self._context.reports.on_error(error.reason)
            self._end(error.grpc_status, str(error))
            return
        if step.route is None:
            self._act(step)
        else:
            self._route(step.route)

    def ended(self) -> None:
        """See `Call`."""
        if self._task is None:
            self._end(StatusCode.OK)
        else:
            self._keep(None)

    def passed(self, report: bytes) -> None:
        """See `Call`."""
        if not self._is_over:
            self._act(self._machine.passed(report, now=time.monotonic()))

    def gone(self) -> None:
        """See `Call`."""
        self._end(StatusCode.CANCELLED)

    def _wait_with(self, message: bytes) -> None:
        self._n_waiting_bytes += len(message)
        if len(self._waiting or ()) < MAX_WAITING and self._n_waiting_bytes <= MAX_WAITING_BYTES:
            self._keep(message)
        else:
            limits = f"{MAX_WAITING} messages or {MAX_WAITING_BYTES} bytes"
            self._end(StatusCode.RESOURCE_EXHAUSTED, f"more than {limits} before an answer")

    def _keep(self, message: bytes | None) -> None:
        """Have a message, or the end of the client's side, wait for the task."""
        if self._waiting is None:
            self._waiting = []
        self._waiting.append(message)

    def _revoked(self, reason: Overload) -> None:
        """Route the request without waiting for more of its body."""
        step = self._machine.revoked(reason)
        if step.route is not None:
            self._route(step.route)

    def _route(self, request: RoutingRequest) -> None:
        try:
            result = self._context.router.route(request)
        except Exception as error:  # noqa: BLE001 - a fault in one request must cost that request alone
            result = Known(self._failed(error, request))
        if isinstance(result, Known):
            self._act(self._machine.routed(result.value, now=time.monotonic()))
        else:
            self._begin(self._wait(result, request))

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        self._responder.pause_reading()
        self._task = asyncio.get_running_loop().create_task(work)

    async def _wait(self, later: Later[RoutingResult], request: RoutingRequest) -> None:
        # Nothing may wait between the decision and its step: a stream cancelled there would lose the decision.
        try:
            result = await later
        except asyncio.CancelledError:
            self._close()
            raise
        except Exception as error:  # noqa: BLE001 - as above
            result = self._failed(error, request)
        self._go_on(self._machine.routed(result, now=time.monotonic()))

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
        waiting, self._waiting = self._waiting, None
        self._n_waiting_bytes = 0
        for message in waiting or ():
            if message is None:
                self.ended()
            else:
                self.received(message)

    def _act(self, step: Step) -> None:
        if step.begun is not None:
            self._context.reports.on_begun(step.begun)
        if step.named is not None:
            self._context.reports.on_named(step.named)
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
        self._waiting = None
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
