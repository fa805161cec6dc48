"""The endpoint picker's side of one ext-proc stream, without I/O.

A stream carries one HTTP request and its response. `protocol_config.request_body_mode` of the first message selects
one of three ways to reply to the request phase:

    mode          request_headers      request_body                  request_trailers
    DUPLEX        collected            collected; at the end routed  collected body routed
    BUFFERED      unchanged            routed                        routed if no body came before
    HEADERS_ONLY  routed               unchanged                     unchanged

In DUPLEX the replies are the headers with the destination, then the whole body again, then the trailers. Headers that
end the stream (no body) are routed at once in every mode, and those of a WebSocket in DUPLEX. A request past a limit of the intake is routed as soon as
anything of its body has come, and the rest passes through as it comes. The response phase passes through message by message.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from ...routing.outcome import Completion, Outcome, ResponseBegun, ResponseNamed
from ...routing.router import LocalResponse, ModelRewrite, Overload, Route, RoutingResult
from ..errors import ExtProcError
from . import ext_proc_pb2 as pb
from .intake import OnRevoked
from .messages import Message
from .replies import Replies
from .request_phase import Mode, RequestPhase
from .response_phase import FULL_DUPLEX_STREAMED, ResponsePhase
from .stream import Step, StreamOptions

if TYPE_CHECKING:
    from ..http2._native import Passage

_MODES: dict[int, Mode] = {FULL_DUPLEX_STREAMED: Mode.DUPLEX, pb.ProcessingMode.BUFFERED: Mode.BUFFERED}


class ExtProcMachine:
    """State of one stream. Times are monotonic seconds.

    Args:
        options: shared by all streams.
        on_revoked: called when the request must be routed without waiting for more of its body; `revoked` does so.
    Cost: the request body is held until it is routed; afterwards each message costs its own reply.
    """

    __slots__ = ("_is_complete", "_is_configured", "_request", "_response", "_route", "_routed_at", "_share")

    def __init__(self, options: StreamOptions, on_revoked: OnRevoked) -> None:
        self._share = options.intake.share(on_revoked)
        self._request = RequestPhase(options, self._share)
        self._response = ResponsePhase(options, self._share)
        self._is_configured = False
        self._route: Route | None = None
        self._routed_at: float | None = None
        self._is_complete = False

    def receive(self, message: Message, *, now: float) -> Step:
        """Return the actions after the next message, at `now` in monotonic seconds.

        Raises:
            ExtProcError: the message is not allowed here; the stream cannot continue.
        """
        if not self._is_configured:
            self._configure(message)
        if message.metadata is not None and message.kind.startswith("request"):
            self._request.read_metadata(message.metadata)
        match message.kind:
            case "response_body":
                return self._response_body(message, now)
            case "response_headers":
                replies = (self._response_headers(message),)
                return (
                    Step(replies, passes=True) if self._response.can_pass else self._responded(replies, now)
                )
            case "response_trailers":
                return self._responded(self._response.trailers(message), now)
            case "request_headers":
                step = self._request.headers(message, now=now)
            case "request_body":
                step = self._request.body(message)
            case "request_trailers":
                step = self._request.trailers()
            case _:
                raise ExtProcError("out_of_order", "a message without headers, body or trailers")
        return self._refused(step, now) if step.end else step

    def routed(self, result: RoutingResult, *, now: float) -> Step:
        """Return the actions after routing the request of the last step."""
        step = self._request.routed(result)
        if isinstance(result, Route):
            rewrite = result.rewrite
            self._route, self._routed_at = _without_body(result, rewrite) if rewrite else result, now
        outcome = Outcome.ANSWERED if isinstance(result, LocalResponse) else Outcome.REFUSED
        return self._refused(step, now, outcome) if step.end else step

    def revoked(self, reason: Overload) -> Step:
        """Return the actions of a request that must not wait for more of its body."""
        return self._request.revoked(reason)

    def passage(self) -> Passage | None:
        """Return what passes the rest of the response's body without this machine; None if it is not to pass."""
        return self._response.passage() if self._response.can_pass else None

    def passed(self, report: bytes, *, now: float) -> Step:
        """Return the actions after a report of the passage. Its last one comes before any further message."""
        had_content = self._response.has_content
        self._response.passed(report, now=now)
        return self._shown((), now, had_content=had_content)

    def close(self, *, now: float) -> Completion | None:
        """End the stream and release what it holds; returns the request's end unless that was reported before."""
        if self._response.has_ended:
            outcome = Outcome.COMPLETED
        elif self._route is None or self._response.is_shown:
            outcome = Outcome.ABORTED
        else:
            outcome = Outcome.COMPLETED if self._response.has_begun else Outcome.ROUTED
        completion = self._completion(outcome, now) if not self._is_complete else None
        self._share.close()
        if completion is not None and outcome is Outcome.ROUTED and not self._request.is_held_to_the_end:
            return msgspec.structs.replace(completion, is_hidden=True)
        return completion

    def _configure(self, message: Message) -> None:
        """Read the modes from the first message.

        Gateways without `protocol_config` are served as DUPLEX: the endpoint picker protocol defines no other mode, and
        reference pickers assume it.
        """
        self._is_configured = True
        if message.modes is not None:
            request_mode, self._response.mode = message.modes
            self._request.mode = _MODES.get(request_mode, Mode.HEADERS_ONLY)

    def _response_headers(self, message: Message) -> bytes:
        counts_tokens = self._route is not None and not self._request.is_bare
        return self._response.headers(
            message, self._route, counts_tokens=counts_tokens, announces=self._request.announces
        )

    def _response_body(self, message: Message, now: float) -> Step:
        response = self._response
        had_content, has_passed, was_named = response.has_content, response.can_pass, response.response_id
        step = self._shown(response.body(message, now=now), now, had_content=had_content)
        if not has_passed and response.can_pass:
            step = msgspec.structs.replace(step, passes=True)
        if response.response_id and not was_named and self._route is not None:
            stored = ResponseNamed(response.response_id, response.served or self._route.addresses[0])
            step = msgspec.structs.replace(step, named=stored)
        return step

    def _shown(self, replies: Replies, now: float, *, had_content: bool) -> Step:
        """Make a step of the response's body, which reports its first byte."""
        step = self._responded(replies, now)
        if had_content or self._route is None or not self._response.has_content:
            return step
        is_first_token = self._response.shows_tokens
        begun = ResponseBegun(self._route, is_first_token, self._response.served)
        return Step(step.replies, begun=begun, completion=step.completion)

    def _refused(self, step: Step, now: float, outcome: Outcome = Outcome.REFUSED) -> Step:
        """Complete a step that ends the request phase and the stream: a refusal, or a response of the picker's own."""
        return Step(step.replies, end=True, completion=self._completion(outcome, now))

    def _responded(self, replies: Replies, now: float) -> Step:
        """Make a step of the response. The end of a response without a decision is reported when the stream closes."""
        if self._route is None or self._is_complete or not self._response.has_ended:
            return Step(replies)
        completion = self._completion(Outcome.COMPLETED, now)
        self._share.release()
        return Step(replies, completion=completion)

    def _completion(self, outcome: Outcome, now: float) -> Completion:
        self._is_complete = True
        response = self._response.seen(routed_at=self._routed_at, now=now)
        return Completion(self._request.request_id, self._route, outcome, self._response.served, response)


def _without_body(route: Route, rewrite: ModelRewrite) -> Route:
    """Return the route without the new body, which must not stay in memory while the response is waited for."""
    return msgspec.structs.replace(route, rewrite=dataclasses.replace(rewrite, body=b""))
