"""One ext-proc stream on its way between transport and router."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from ...routing.outcome import Completion, ResponseBegun
from ...routing.router import Refusal, RefusalCode, Router, RoutingRequest, RoutingResult
from ...tokenization.eventual import Eventual, recovered
from ..errors import ExtProcError, place_of
from . import ext_proc_pb2 as pb
from .machine import ExtProcMachine
from .stream import Step, StreamOptions

_log = logging.getLogger(__name__)

_ROUTER_FAILED = Refusal(RefusalCode.INTERNAL, "the endpoint picker failed on this request")


@dataclass(frozen=True, slots=True)
class Circle:
    """Who has to do with the streams of a server.

    Attributes:
        options: what is the same for all streams.
        router: decides where requests go.
        on_error: called with a bounded word for each thing that went wrong: `router`, `not_protobuf`, `out_of_order`.
        on_begun: called when the first bytes of an answer's body come, at most once for each request.
        on_complete: called once for each request, as soon as its end is known and however it ended.
    """

    options: StreamOptions
    router: Router
    on_error: Callable[[str], None]
    on_begun: Callable[[ResponseBegun], None]
    on_complete: Callable[[Completion], None]


class Conversation:
    """Feeds one stream's messages to its machine, and tells those around what becomes of the request.

    Args:
        circle: those around.
    """

    def __init__(self, circle: Circle) -> None:
        self._circle = circle
        self._machine = ExtProcMachine(circle.options)

    def receive(self, data: bytes) -> Step:
        """What to do about the next message; where it asks for a route, `routed` has the rest.

        Raises:
            ExtProcError: the stream cannot go on; it was counted.
        """
        try:
            return self._told(self._machine.receive(_parse(data), now=time.monotonic()))
        except ExtProcError as error:
            self._circle.on_error(error.reason)
            raise

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        """Return the router's result; a refusal if the router fails."""
        # A fault in one request must cost that request alone.
        return recovered(
            Exception, lambda error: self._failed(error, request), self._circle.router.route, request
        )

    def routed(self, answer: RoutingResult) -> Step:
        """What to do with the router's answer.

        Nothing may wait between the decision and this: a stream cancelled there would lose the decision.
        """
        return self._told(self._machine.routed(answer, now=time.monotonic()))

    def close(self) -> None:
        """The stream is over, however it came to that."""
        completion = self._machine.close(now=time.monotonic())
        if completion is not None:
            self._circle.on_complete(completion)

    def _failed(self, error: Exception, request: RoutingRequest) -> Refusal:
        self._circle.on_error("router")
        _log.error(
            "router failed with %s (request_id=%s)\n%s",
            type(error).__name__, request.request_id, place_of(error),
        )  # fmt: skip
        return _ROUTER_FAILED

    def _told(self, step: Step) -> Step:
        if step.begun is not None:
            self._circle.on_begun(step.begun)
        if step.completion is not None:
            self._circle.on_complete(step.completion)
        return step


def _parse(data: bytes) -> pb.ProcessingRequest:
    try:
        return pb.ProcessingRequest.FromString(data)
    except DecodeError as error:
        raise ExtProcError(
            "not_protobuf", f"message of {len(data)} bytes is not an ext-proc ProcessingRequest"
        ) from error
