"""The request of one ext-proc stream: collected, routed, forwarded."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

from ...routing.control_headers import CONTROL_HEADERS, MAX_ID_CHARS, REQUEST_ID_HEADER
from ...routing.refusals import TOO_MANY_HEADERS
from ...routing.router import (
    NO_HEADERS,
    LocalResponse,
    ModelRewrite,
    Overload,
    Refusal,
    RefusalCode,
    Route,
    RoutingRequest,
    RoutingResult,
)
from ...scorers.core.decision import Decision
from ...tokenization.requests.beginning import MAX_BEGINNING_BYTES
from ...tokenization.requests.grpc_frame import has_message
from ..errors import ExtProcError
from . import ext_proc_pb2 as pb
from . import replies
from .announcement import announces
from .headers import essential, is_websocket
from .intake import Share
from .messages import MAX_HEADERS, MAX_MESSAGE_OVERHEAD_BYTES, NO_MESSAGE, Message
from .replies import NO_EDITS, HeaderEdits, Replies, Scores
from .stream import Step, StreamOptions
from .usage import is_grpc


class Mode(Enum):
    """The gateway's mode of sending request bodies; see `machine`."""

    DUPLEX = auto()
    BUFFERED = auto()
    HEADERS_ONLY = auto()


class _Phase(Enum):
    """State of the request. PASSING: routed before its end, the rest is forwarded as it comes."""

    HEADERS = auto()
    BODY = auto()
    ROUTING = auto()
    PASSING = auto()
    ENDED = auto()


class _ReplyForm(Enum):
    """Replies to a routed request; the first message named carries the destination."""

    HEADERS = auto()
    HEADERS_BODY = auto()
    HEADERS_BODY_TRAILERS = auto()
    BODY = auto()
    TRAILERS = auto()


# Reading a member from its enum takes as long as a call, and a request needs twenty.
_AT_HEADERS, _AT_BODY, _ROUTING, _PASSING, _ENDED = _Phase
_DUPLEX, _BUFFERED, _HEADERS_ONLY = Mode

FREE_HEADER_BYTES = 4096
"""Headers up to this length count as part of the pending request, longer ones are held bytes too."""

_NOTHING = Step()
_BODY_UNCHANGED = Step(replies=(replies.REQUEST_BODY_UNCHANGED,))
_TRAILERS_UNCHANGED = Step(replies=(replies.REQUEST_TRAILERS_UNCHANGED,))


class RequestPhase:
    """State of one request.

    Args:
        options: of the server.
        share: accounts for what the stream holds, until it is routed.

    Attributes:
        mode: how the gateway sends the body.
        request_id: `x-request-id`, generated if the request has none; empty before its headers.
        is_bare: whether the request has headers only, as a GET.
        announces: see `announcement.announces`.
    """

    __slots__ = (
        "_arrived_at",
        "_body",
        "_collected",
        "_edits",
        "_form",
        "_headers",
        "_headers_message",
        "_is_whole",
        "_options",
        "_overload",
        "_phase",
        "_share",
        "_subset",
        "announces",
        "is_bare",
        "mode",
        "request_id",
    )

    def __init__(self, options: StreamOptions, share: Share) -> None:
        self.mode: Mode = _DUPLEX
        self.request_id = ""
        self.is_bare = self.announces = False
        self._options, self._share = options, share
        self._phase = _AT_HEADERS
        self._headers_message = NO_MESSAGE
        self._headers: Mapping[str, str] = NO_HEADERS
        self._edits = NO_EDITS
        self._subset: frozenset[str] | None = None
        self._collected: bytes | bytearray = b""
        self._body = b""
        self._form = _ReplyForm.HEADERS
        self._is_whole = True
        self._overload: Overload | None = None
        self._arrived_at = 0.0

    def read_metadata(self, metadata: pb.Metadata) -> None:
        """Read the subset hint, which may come with any message of the request; the last one counts."""
        subset = self._options.dialect.subset(metadata) if self._options.use_subset else None
        self._subset = self._subset if subset is None else subset

    def headers(self, message: Message, *, now: float) -> Step:
        """Return the actions after the headers, at `now` in monotonic seconds."""
        if self._phase is not _AT_HEADERS:
            raise ExtProcError("out_of_order", "request_headers came twice on one stream")
        self._phase = _AT_BODY
        self._arrived_at = now
        self.is_bare = message.end_of_stream
        if message.n_headers > MAX_HEADERS:
            return self.routed(TOO_MANY_HEADERS)
        self._take_headers(message)
        if self.is_bare:
            return self._ask(_ReplyForm.HEADERS)
        if self.mode is _HEADERS_ONLY or (self.mode is _DUPLEX and is_websocket(self._headers)):
            return self._ask(_ReplyForm.HEADERS, is_whole=False)
        return self._await_body(message.n_bytes, now)

    def body(self, message: Message) -> Step:
        """Return the actions after a piece of the body."""
        body = message.body
        if self._phase is _PASSING:
            return self._pass(body, end_of_stream=message.end_of_stream)
        if self._phase is not _AT_BODY:
            raise self._not_expected("request_body")
        if len(self._collected) + len(body) > self._options.max_body_bytes:
            return self._too_long()
        if body:
            self._collect(body)
        if self.mode is _BUFFERED:
            self._admit()
            return self._ask(_ReplyForm.BODY)
        if message.end_of_stream or self._overload is not None or self._has_first_message():
            return self._ask(_ReplyForm.HEADERS_BODY, is_whole=message.end_of_stream)
        return _NOTHING

    def trailers(self) -> Step:
        """Return the actions after the trailers."""
        if self._phase is _PASSING or (self._phase is _ENDED and self.mode is not _DUPLEX):
            self._phase = _ENDED
            return _TRAILERS_UNCHANGED
        if self._phase is not _AT_BODY:
            raise self._not_expected("request_trailers")
        return self._ask(_ReplyForm.TRAILERS if self.mode is _BUFFERED else _ReplyForm.HEADERS_BODY_TRAILERS)

    def revoked(self, overload: Overload) -> Step:
        """Return the actions after the intake needs the room, or the body took too long."""
        self._overload = overload
        if self.mode is not _BUFFERED:
            return self._ask(_ReplyForm.HEADERS_BODY, is_whole=False)
        # The gateway has its reply to the headers, and expects the next one after the body.
        self._shed_headers()
        self._share.release()
        return _NOTHING

    def routed(self, result: RoutingResult) -> Step:
        """Return the actions after routing the request of the last step."""
        self._phase = _ENDED if self._is_whole else _PASSING
        self._share.release()
        if isinstance(result, Route) and result.rewrite is not None and self._is_unsendable(result.rewrite):
            limit = self._options.max_sent_bytes
            text = f"the request body with another model is larger than {limit} bytes, the limit of messages"
            result = Refusal(RefusalCode.PAYLOAD_TOO_LARGE, text)
        if isinstance(result, Refusal):
            refusal = self._options.dialect.refusal(result, has_body=not self.is_bare)
            kind = self._headers_message.headers.get("content-type", "")
            step = Step(replies=(replies.refused(refusal, is_grpc=is_grpc(kind)),), end=True)
        elif isinstance(result, LocalResponse):
            step = Step(replies=(replies.local_response(result.body),), end=True)
        else:
            step = Step(replies=self._replies(result))
        # A stream stays open as long as its response; what the reply was made of does not.
        self._body = b""
        self._headers_message, self._edits, self._subset = NO_MESSAGE, NO_EDITS, None
        self._arrived_at = 0.0
        return step

    @property
    def is_held_to_the_end(self) -> bool:
        """Whether the gateway keeps the stream until the response ends, though it sends nothing of the response.

        Source: Envoy 1.40 does so if it waited for the reply to a whole body.
        """
        return self.mode is _BUFFERED and not self.is_bare

    def _take_headers(self, message: Message) -> None:
        self._headers_message = message
        self._headers = headers = message.headers
        self.announces = announces(headers.get(":path", ""))
        if not CONTROL_HEADERS.isdisjoint(headers):
            self._edits = HeaderEdits(remove=tuple(sorted(CONTROL_HEADERS & headers.keys())))
        self.request_id = headers.get(REQUEST_ID_HEADER, "")[:MAX_ID_CHARS]
        if not self.request_id:
            self.request_id = self._options.new_request_id()
            new = (REQUEST_ID_HEADER, self.request_id.encode())
            self._edits = HeaderEdits(set=(new,), remove=self._edits.remove)

    def _await_body(self, n_bytes: int, now: float) -> Step:
        """Begin to collect the body.

        In BUFFERED the gateway holds the body until it is whole: the request is not pending before. Past a limit, the
        first piece of the body is awaited all the same, since it may name the model.
        """
        if self.mode is not _BUFFERED:
            self._admit()
        if n_bytes > FREE_HEADER_BYTES and not self._share.hold(n_bytes):
            self._overload = Overload.HELD_BYTES
        if self._overload is not None:
            self._shed_headers()
        if self.mode is not _BUFFERED or n_bytes > FREE_HEADER_BYTES:
            self._share.collect(now=now)
        return self._answer_headers() if self.mode is _BUFFERED else _NOTHING

    def _answer_headers(self) -> Step:
        """Remove what no server may get from the client: no later reply can, if neither a body nor trailers are sent."""
        removed, self._edits = self._edits.remove, HeaderEdits(self._edits.set)
        return Step(replies=(replies.request_headers_without(removed),))

    def _shed_headers(self) -> None:
        self._headers_message, self._headers = NO_MESSAGE, essential(self._headers)

    def _admit(self) -> None:
        if self._overload is None and not self._share.admit():
            self._overload = Overload.PENDING_REQUESTS

    def _collect(self, body: bytes) -> None:
        """Keep a piece of the body. A body in one piece, as Envoy sends it, is never copied."""
        if not self._share.hold(len(body)):
            self._overload = self._overload or Overload.HELD_BYTES
        if not self._collected:
            self._collected = body
            return
        if isinstance(self._collected, bytes):
            self._collected = bytearray(self._collected)
        self._collected += body

    def _has_first_message(self) -> bool:
        """Return whether the first message of a gRPC call has come; its client may send no other before a response."""
        return is_grpc(self._headers.get("content-type", "")) and has_message(self._collected)

    def _pass(self, body: bytes, *, end_of_stream: bool) -> Step:
        if end_of_stream:
            self._phase = _ENDED
        if self.mode is not _DUPLEX:
            return _BODY_UNCHANGED
        return Step(replies.request_body_chunks(body, end_of_stream=end_of_stream))

    def _too_long(self) -> Step:
        self._collected = b""
        limit = self._options.max_body_bytes
        text = f"request body is larger than {limit} bytes, the limit of this endpoint picker"
        return self.routed(Refusal(RefusalCode.PAYLOAD_TOO_LARGE, text))

    def _not_expected(self, kind: str) -> ExtProcError:
        if self._phase is not _AT_HEADERS:
            return ExtProcError("out_of_order", f"{kind} came after the end of the request")
        return ExtProcError(
            "out_of_order",
            f"{kind} came before request_headers; set processing_mode.request_header_mode to SEND in Envoy's "
            "ext_proc filter",
        )

    def _ask(self, form: _ReplyForm, *, is_whole: bool = True) -> Step:
        self._phase = _ROUTING
        self._share.settle()
        self._form, self._is_whole = form, is_whole
        self._body, self._collected = bytes(self._collected), b""
        headers, self._headers = self._headers, NO_HEADERS
        return Step(
            route=RoutingRequest(
                path=headers.get(":path", ""),
                body=self._body if self._overload is None else self._body[:MAX_BEGINNING_BYTES],
                has_body=bool(self._body) or self._overload is not None,
                headers=headers,
                subset=self._subset,
                request_id=self.request_id,
                overload=self._overload,
                arrived_at=self._arrived_at,
            )
        )

    def _is_unsendable(self, rewrite: ModelRewrite) -> bool:
        """Return whether a changed body is too long for one message, in which BUFFERED returns it."""
        n_bytes = len(rewrite.body) + MAX_MESSAGE_OVERHEAD_BYTES
        return self._form is _ReplyForm.BODY and n_bytes > self._options.max_sent_bytes

    def _replies(self, route: Route) -> Replies:
        destination = ",".join(route.addresses)
        scores = _totals(route.decision) if self._options.emit_scores else None
        body, new_body = self._body, None
        if route.rewrite is not None:
            body = new_body = route.rewrite.body
        edits = self._all_edits(body, rewritten=new_body is not None)
        if route.request_headers:
            fields = tuple((name, value.encode()) for name, value in route.request_headers.items())
            edits = HeaderEdits(edits.set + fields, edits.remove)
        match self._form:
            case _ReplyForm.BODY:
                return (replies.destination_on_body(destination, edits, new_body, scores),)
            case _ReplyForm.HEADERS:
                return (replies.destination_on_headers(destination, edits, scores),)
            case _ReplyForm.HEADERS_BODY:
                chunks = replies.request_body_chunks(body, end_of_stream=self._is_whole)
                return (replies.destination_on_headers(destination, edits, scores), *chunks)
            case _ReplyForm.HEADERS_BODY_TRAILERS:
                chunks = replies.request_body_chunks(body, end_of_stream=False)
                return (
                    replies.destination_on_headers(destination, edits, scores),
                    *chunks,
                    replies.REQUEST_TRAILERS_UNCHANGED,
                )
            case _ReplyForm.TRAILERS:
                return (replies.destination_on_trailers(destination, scores),)

    def _all_edits(self, body: bytes, *, rewritten: bool) -> HeaderEdits:
        if not body or not self._is_whole:
            return self._edits
        more = self._options.dialect.request_fields(self._headers_message, body, rewritten=rewritten)
        return HeaderEdits(self._edits.set + more, self._edits.remove) if more else self._edits


def _totals(decision: Decision) -> Scores:
    return dict(zip(decision.kept_addresses, decision.totals.tolist(), strict=True))
