"""The endpoint picker's side of one ext-proc stream, without I/O.

A stream carries one HTTP request and its response. `protocol_config.request_body_mode` of the first message selects
one of three ways to reply to the request phase:

    mode          request_headers      request_body                  request_trailers
    DUPLEX        collected            collected; at the end routed  collected body routed
    BUFFERED      unchanged            routed                        routed if no body came before
    HEADERS_ONLY  routed               unchanged                     unchanged

In DUPLEX the replies are the headers with the destination, then the whole body again, then the trailers. Headers that
end the stream (no body) are routed at once in every mode. A request past a limit of the intake is routed as soon as
anything of its body has come, and the rest passes through as it comes. The response phase passes through message by message.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, assert_never

import msgspec

from ...routing.outcome import Completion, Outcome, ResponseBegun
from ...routing.router import ModelRewrite, Overload, Route, RoutingResult
from ..errors import ExtProcError
from . import ext_proc_pb2 as pb
from .intake import OnRevoked
from .replies import Replies
from .request_phase import Mode, RequestPhase
from .response_phase import FULL_DUPLEX_STREAMED, ResponsePhase
from .stream import Step, StreamOptions

if TYPE_CHECKING:
    from ..http2._native import Passage

_MODES = {FULL_DUPLEX_STREAMED: Mode.DUPLEX, pb.ProcessingMode.BUFFERED: Mode.BUFFERED}


class ExtProcMachine:
    """State of one stream. Times are monotonic seconds.

    Args:
        options: shared by all streams.
        on_revoked: called when the request must be routed without waiting for more of its body; `revoked` does so.
    Cost: the request body is held until it is routed; afterwards each message costs its own reply.
    """

    def __init__(self, options: StreamOptions, on_revoked: OnRevoked) -> None:
        self._share = options.intake.share(on_revoked)
        self._request = RequestPhase(options, self._share)
        self._response = ResponsePhase(options, self._share)
        self._is_configured = False
        self._route: Route | None = None
        self._routed_at: float | None = None
        self._is_complete = False

    def receive(
        self, message: pb.ProcessingRequest, *, n_bytes: int, now: float, body: bytes | None = None
    ) -> Step:
        """Return the actions after the next message.

        Args:
            message: as decoded.
            n_bytes: its length as received.
            now: monotonic seconds.
            body: the body that the message had; None if it is still in the message.
        Raises:
            ExtProcError: the message is not allowed here; the stream cannot continue.
        """
        if not self._is_configured:
            self._configure(message)
        kind = message.WhichOneof("request")
        match kind:
            case "response_body":
                return self._response_body(message.response_body, body, now)
            case "response_headers":
                step = self._responded((self._response_headers(message),), now)
                return step._replace(passes=True) if self._response.can_pass else step
            case "response_trailers":
                return self._responded(self._response.trailers(), now)
            case "request_headers":
                self._request.read_metadata(message)
                step = self._request.headers(message.request_headers, n_bytes=n_bytes, now=now)
                return self._requested(step, now)
            case "request_body":
                self._request.read_metadata(message)
                return self._requested(self._request.body(message.request_body, body), now)
            case "request_trailers":
                self._request.read_metadata(message)
                return self._request.trailers()
            case None:
                raise ExtProcError("out_of_order", "a message without headers, body or trailers")
            case _:
                assert_never(kind)

    def routed(self, result: RoutingResult, *, now: float) -> Step:
        """Return the actions after routing the request of the last step."""
        step = self._request.routed(result)
        if isinstance(result, Route):
            rewrite = result.rewrite
            self._route, self._routed_at = _without_body(result, rewrite) if rewrite else result, now
        return self._requested(step, now)

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

    def _configure(self, message: pb.ProcessingRequest) -> None:
        """Read the modes from the first message.

        Gateways without `protocol_config` are served as DUPLEX: the endpoint picker protocol defines no other mode, and
        reference pickers assume it.
        """
        self._is_configured = True
        if message.HasField("protocol_config"):
            config = message.protocol_config
            self._request.mode = _MODES.get(config.request_body_mode, Mode.HEADERS_ONLY)
            self._response.mode = config.response_body_mode

    def _response_headers(self, message: pb.ProcessingRequest) -> bytes:
        counts_tokens = self._route is not None and not self._request.is_bare
        return self._response.headers(message, self._route, counts_tokens=counts_tokens)

    def _response_body(self, message: pb.HttpBody, body: bytes | None, now: float) -> Step:
        had_content = self._response.has_content
        return self._shown(self._response.body(message, body, now=now), now, had_content=had_content)

    def _shown(self, replies: Replies, now: float, *, had_content: bool) -> Step:
        """Make a step of the response's body, which reports its first byte."""
        step = self._responded(replies, now)
        if had_content or self._route is None or not self._response.has_content:
            return step
        is_first_token = self._response.shows_tokens
        return step._replace(begun=ResponseBegun(self._route, is_first_token, self._response.served))

    def _requested(self, step: Step, now: float) -> Step:
        """Complete a step of the request, which ends the stream only if the request is refused."""
        if not step.end:
            return step
        return Step(step.replies, end=True, completion=self._completion(Outcome.REFUSED, now))

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
