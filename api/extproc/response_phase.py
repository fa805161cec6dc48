"""The response on one ext-proc stream: passed on message by message, while its usage is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from ...routing.outcome import Response, Usage, UsageGap
from ...routing.router import Route
from ...scorers.core.around import AttributeReporter, UsageCounts
from ..errors import http_status
from . import ext_proc_pb2 as pb
from . import replies
from .announcement import Announcement
from .grpc_usage import GrpcMessages
from .headers import read_served
from .intake import Share
from .messages import Message, trailers_of
from .model_name import ModelName
from .passing import Reading, passage, read_report
from .replies import Replies
from .response_id import ResponseId
from .stream import StreamOptions
from .usage import UsageReader, is_encoded, is_event_stream, is_grpc, usage_reader

if TYPE_CHECKING:
    from ..http2._native import Passage

FULL_DUPLEX_STREAMED = pb.ProcessingMode.FULL_DUPLEX_STREAMED
_SHOWN_AS_IT_COMES = (FULL_DUPLEX_STREAMED, pb.ProcessingMode.STREAMED)
_NONE = pb.ProcessingMode.NONE
_STATUS = re.compile("[1-5][0-9][0-9]")


class ResponsePhase:
    """State of one response.

    Only in FULL_DUPLEX_STREAMED the body is sent back, and can be changed; in other modes Envoy forwards it itself.

    Args:
        options: of the server.
        share: accounts for a held body.

    Attributes:
        mode: how the gateway sends the body.
        has_begun: whether anything of the response was seen.
        has_ended: whether its end was seen.
        served: address of the endpoint it came from, None if the gateway does not report it.
        response_id: of the responses API, once it was seen; empty before, and of any other response.
    """

    __slots__ = (
        "_announcement",
        "_collected",
        "_first_byte_at",
        "_id",
        "_is_event_stream",
        "_is_grpc",
        "_model_name",
        "_options",
        "_reader",
        "_reporters",
        "_share",
        "_status",
        "_usage",
        "has_begun",
        "has_ended",
        "mode",
        "response_id",
        "served",
    )

    def __init__(self, options: StreamOptions, share: Share) -> None:
        self.mode: int = FULL_DUPLEX_STREAMED
        self.has_begun = self.has_ended = False
        self.served: str | None = None
        self.response_id = ""
        self._options, self._share = options, share
        self._status: int | None = None
        self._is_event_stream = self._is_grpc = False
        self._announcement: Announcement | None = None
        """Reads what comes before the first token; None if nothing does, and once that has come."""
        self._id: ResponseId | None = None
        """Reads the response's id; None if it has none, and once it was found."""
        self._reader: UsageReader | None = None
        self._model_name: ModelName | None = None
        self._collected: bytearray | None = None
        self._first_byte_at: float | None = None
        self._reporters: tuple[AttributeReporter, ...] = ()
        self._usage: Usage | UsageGap | None = None

    @property
    def is_shown(self) -> bool:
        """Whether the gateway sends the response's body."""
        return self.mode != _NONE

    @property
    def shows_tokens(self) -> bool:
        """Whether pieces of the body are tokens as they are generated: a successful stream, sent as it comes."""
        if self._status != 200 or self.mode not in _SHOWN_AS_IT_COMES:
            return False
        return self._is_event_stream or (isinstance(self._reader, GrpcMessages) and self._reader.n_events > 0)

    @property
    def has_content(self) -> bool:
        """Whether any byte of the body was seen, without what is sent before the first token."""
        return self._first_byte_at is not None

    def headers(
        self, message: Message, route: Route | None, *, counts_tokens: bool, announces: bool = False
    ) -> bytes:
        """Return the reply to the headers.

        Args:
            message: with the headers.
            route: of the request, None if the request was not seen.
            counts_tokens: whether engines count tokens of such requests.
            announces: whether it is one of the responses API, of which an event stream begins before the first token, see
                `Announcement`.
        """
        self.has_begun = True
        self.has_ended = message.end_of_stream
        self.served = read_served(message)
        headers = message.headers
        status = headers.get(":status", "")
        self._status = int(status) if _STATUS.fullmatch(status) else None
        kind = headers.get("content-type", "")
        self._is_event_stream = is_event_stream(kind)
        self._is_grpc = is_grpc(kind)
        if self._status == HTTPStatus.OK and not is_encoded(headers.get("content-encoding", "")):
            self._announcement = Announcement(has_events=announces) if self._is_event_stream else None
            self._id = ResponseId() if announces else None
        self._note_grpc_status(headers)
        if self.is_shown and not self.has_ended:
            self._prepare(headers, route, counts_tokens=counts_tokens)
        fields = self._options.dialect.response_fields(message)
        if route is not None:
            self._reporters = route.reporters
        if route is not None and route.response_headers:
            fields += tuple((name, value.encode()) for name, value in route.response_headers.items())
        return replies.response_headers_with(fields) if fields else replies.RESPONSE_HEADERS_UNCHANGED

    def body(self, message: Message, *, now: float) -> Replies:
        """Return the replies to a piece of the body."""
        self.has_begun = True
        end = self.has_ended = message.end_of_stream
        body = message.body
        if body:
            if self._first_byte_at is None:
                self._read_beginning(body, now)
            if self._reader is not None:
                self._reader.feed(body)
            if self._id is not None:
                self._id.feed(body)
                self.response_id = self._id.value
                if self._id.is_over or (self._is_event_stream and self._announcement is None):
                    self._id = None
        if self.mode != FULL_DUPLEX_STREAMED:
            forwarded: Replies = (replies.RESPONSE_BODY_UNCHANGED,)
        else:
            forwarded = self._forwarded(body, end=end, end_of_stream=end)
        return self._reported(forwarded) if end and self._reporters else forwarded

    def _read_beginning(self, body: bytes, now: float) -> None:
        """Note the first byte of the response proper. The status of a stream that begins with an error was sent too early."""
        announcement = self._announcement
        if announcement is None or announcement.is_over(body):
            self._first_byte_at, self._announcement = now, None
            if announcement is not None and announcement.is_error:
                self._status = HTTPStatus.INTERNAL_SERVER_ERROR

    def trailers(self, message: Message) -> Replies:
        """Return the replies to the trailers, which end the response; held bytes of the body go first."""
        self.has_begun = self.has_ended = True
        if self._is_grpc:
            self._note_grpc_status(trailers_of(message))
        last: Replies = (replies.RESPONSE_TRAILERS_UNCHANGED,)
        if self._reporters:
            last = self._reported(last)
        if self._model_name is None and self._collected is None:
            return last
        return (*self._forwarded(b"", end=True, end_of_stream=False), *last)

    @property
    def can_pass(self) -> bool:
        """Whether nothing of the body that is still to come is changed or held back."""
        is_due = self.has_begun and self.is_shown and not self.has_ended
        is_kept = self._model_name is None and self._collected is None
        is_read = self._announcement is None and self._id is None
        return is_due and is_kept and is_read and (self._reader is None or self._reader.passes)

    def passage(self) -> Passage | None:
        """Return what passes the rest of the body, None if the native part is missing; `can_pass` must hold."""
        reading = self._reader.reading() if self._reader is not None else Reading()
        return passage(
            reading,
            gives_back=self.mode == FULL_DUPLEX_STREAMED,
            has_begun=self.has_content,
            leaves_end=bool(self._reporters),
        )

    def passed(self, data: bytes, *, now: float) -> None:
        """Take note of a report of the passage."""
        report = read_report(data)
        if report.has_begun:
            self._first_byte_at = now
        self.has_ended = report.has_ended
        if self._reader is not None:
            self._reader.passed(report)

    def seen(self, *, routed_at: float | None, now: float) -> Response:
        """Return what was seen of the response. Call it once, after its end."""
        first = self._first_byte_at
        return Response(
            status=self._status,
            usage=self._read_usage(),
            n_events=self._reader.n_events if self._reader is not None else 0,
            time_to_first_byte_s=first - routed_at if first is not None and routed_at is not None else None,
            time_to_end_s=now - routed_at if routed_at is not None else None,
            shows_tokens=self.shows_tokens,
        )

    def _note_grpc_status(self, headers: Mapping[str, str]) -> None:
        """Take the status of a gRPC response for that of HTTP, which is 200 whatever went wrong."""
        status = headers.get("grpc-status") if self._is_grpc else None
        if status is not None and self._status == 200:
            self._status = http_status(status)

    def _read_usage(self) -> Usage | UsageGap | None:
        """Return the usage, once the response has ended; None if it is not read."""
        if self._usage is None and self._reader is not None:
            self._usage = self._reader.end()
        return self._usage

    def _reported(self, last: Replies) -> Replies:
        """Add what is reported of the request to its last reply."""
        usage = self._read_usage()
        counts = UsageCounts()
        if isinstance(usage, Usage):
            counts = UsageCounts(usage.prompt_tokens or 0, usage.output_tokens or 0, usage.cached_tokens)
        found = [each for reporter in self._reporters if (each := reporter.attribute(counts)) is not None]
        return replies.with_attributes(last, found) if found else last

    def _prepare(self, headers: dict[str, str], route: Route | None, *, counts_tokens: bool) -> None:
        """Choose how to treat the body."""
        kind, encoding = headers.get("content-type", ""), headers.get("content-encoding", "")
        if counts_tokens and self._options.read_usage and self._status == 200:
            self._reader = (
                GrpcMessages(self._share)
                if self._is_grpc
                else usage_reader(content_type=kind, content_encoding=encoding, budget=self._share)
            )
        if self.mode != FULL_DUPLEX_STREAMED:
            return
        rewrite = route.rewrite if route is not None else None
        if rewrite is not None and rewrite.asked_for and not is_encoded(encoding):
            self._model_name = ModelName(rewrite)
        if self._options.dialect.collects_bodies and not self._is_event_stream:
            self._collected = bytearray()

    def _forwarded(self, body: bytes, *, end: bool, end_of_stream: bool) -> Replies:
        if self._collected is not None:
            if not end or self._collected:
                self._collected += body
                fits = len(self._collected) <= self._options.max_body_bytes
                if not end and fits and self._share.hold(len(body)):
                    return ()
                body = bytes(self._collected)
            self._collected = None
        if self._model_name is not None:
            if len(body) > replies.MAX_AT_ONCE_BYTES:
                messages = self._restored(self._model_name, body, end=end, end_of_stream=end_of_stream)
                return (replies.LongReply(len(body), messages),)
            body = self._model_name.restored(body, end=end)
        return replies.response_body_chunks(body, end_of_stream=end_of_stream)

    @staticmethod
    def _restored(model_name: ModelName, body: bytes, *, end: bool, end_of_stream: bool) -> Iterator[bytes]:
        for piece, is_last in replies.pieces(body):
            restored = model_name.restored(piece, end=end and is_last)
            yield from replies.response_body_messages(restored, end_of_stream=end_of_stream and is_last)
