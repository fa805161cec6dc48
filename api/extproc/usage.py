"""Token counts of engines, read out of responses as they pass.

Known forms: `usage` of OpenAI's completions, chat completions, embeddings and responses, and of Anthropic's messages;
as one JSON object, or in server-sent events, in chunks cut anywhere.
"""

from __future__ import annotations

import math
import re
from typing import Any, Protocol, cast

import msgspec
from msgspec import Raw

from ...routing.outcome import Usage, UsageGap
from .passing import READS_EVENTS, READS_WHOLE, Reading, Report

MAX_HELD_BYTES = 1024 * 1024
"""Longest JSON response, and longest line of an event stream, that is read. 100,000 tokens take half of it."""

FREE_LINE_BYTES = 4096
"""Part of a line of an event stream that is not accounted for: 160 MB if 40,000 streams stop amid a line."""

MAX_EVENTS_BYTES = 256 * 1024
"""Longest piece of an event stream that is read at once; in the worst case that takes some ten milliseconds."""

MAX_COUNT = 2**53
"""Larger numbers are not taken for token counts."""


class UsageReader(Protocol):
    """Reads one response.

    Attributes:
        n_events: events of a stream, without the closing `[DONE]`; 0 for other responses.
        passes: whether a passage may read the rest of the body.
    """

    n_events: int
    passes: bool

    def feed(self, chunk: bytes) -> None:
        """Read the next piece of the body."""
        ...

    def reading(self) -> Reading:
        """Return where a passage goes on. Then only `passed` and `end` are called, until the passage is over."""
        ...

    def passed(self, report: Report) -> None:
        """Take note of what a passage has found."""
        ...

    def end(self) -> Usage | UsageGap:
        """Return the usage. Call it once, at the end of the response."""
        ...


class Budget(Protocol):
    """Accounts for held bytes."""

    def hold(self, n_bytes: int) -> bool:
        """Hold more bytes, unless they exceed the budget."""
        ...


def usage_reader(*, content_type: str, content_encoding: str, budget: Budget) -> UsageReader:
    """Return a reader for a response over HTTP with these headers."""
    if is_encoded(content_encoding):
        return _Unread(UsageGap.ENCODED)
    if is_event_stream(content_type):
        return _EventStream(budget)
    kind = _media_type(content_type)
    if kind == "application/json" or kind.endswith("+json"):
        return _JsonObject(budget)
    return _Unread(UsageGap.OTHER_TYPE)


def json_usage(data: bytes | bytearray) -> Usage | UsageGap:
    """Return the usage in a JSON object."""
    try:
        return _merged(None, data) or UsageGap.ABSENT
    except _NOT_JSON:
        return UsageGap.MALFORMED


def is_encoded(content_encoding: str) -> bool:
    """Whether a body is compressed."""
    return content_encoding.strip().lower() not in ("", "identity")


def is_grpc(content_type: str) -> bool:
    """Whether a body consists of gRPC's messages."""
    return _media_type(content_type).partition("+")[0] == "application/grpc"


def is_event_stream(content_type: str) -> bool:
    """Whether a body is a stream of server-sent events."""
    return _media_type(content_type) == "text/event-stream"


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


class _Unread:
    """A response that is not read."""

    __slots__ = ("_why", "n_events")
    passes = True

    def __init__(self, why: UsageGap) -> None:
        self.n_events = 0
        self._why = why

    def feed(self, chunk: bytes) -> None:
        pass

    def reading(self) -> Reading:
        return Reading()

    def passed(self, report: Report) -> None:
        pass

    def end(self) -> UsageGap:
        return self._why


class _JsonObject:
    """A whole response, held until its end."""

    __slots__ = ("_body", "_budget", "_gap", "n_events")
    passes = True

    def __init__(self, budget: Budget) -> None:
        self.n_events = 0
        self._budget = budget
        self._body = bytearray()
        self._gap: UsageGap | None = None

    def feed(self, chunk: bytes) -> None:
        if self._gap is not None:
            return
        if len(self._body) + len(chunk) > MAX_HELD_BYTES:
            self._gap = UsageGap.TOO_LONG
        elif not self._budget.hold(len(chunk)):
            self._gap = UsageGap.OVERLOAD
        else:
            self._body += chunk
            return
        self._body.clear()

    def reading(self) -> Reading:
        return Reading(READS_WHOLE, self._gap is not None, bytes(self._body))

    def passed(self, report: Report) -> None:
        for each in report.found:
            self._gap = _DROPPED[each]
        if not report.is_over:
            return
        if self._gap is not None:
            self._body.clear()
        elif report.has_ended:
            self._body[:] = report.held
        else:
            self.feed(report.held[len(self._body) :])

    def end(self) -> Usage | UsageGap:
        return self._gap if self._gap is not None else json_usage(self._body)


class _EventStream:
    """Lines of `data:`. Several may carry usage; each later one adds to the counts or replaces them."""

    __slots__ = (
        "_budget",
        "_gap",
        "_is_skipping",
        "_line",
        "_n_allowed",
        "_n_before",
        "_usage",
        "n_events",
    )
    passes = True

    def __init__(self, budget: Budget) -> None:
        self.n_events = 0
        self._budget = budget
        self._n_allowed = FREE_LINE_BYTES
        self._n_before = 0
        self._line = bytearray()
        self._is_skipping = False
        self._usage: Usage | None = None
        self._gap = UsageGap.ABSENT

    def feed(self, chunk: bytes) -> None:
        if len(chunk) > MAX_EVENTS_BYTES:
            self._skip(UsageGap.TOO_LONG)
            return
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            if self._line or self._is_skipping:
                self._hold(chunk[start:end])
                self._read(bytes(self._line))
                self._line.clear()
                self._is_skipping = False
            else:
                self._read(chunk[start:end])
            start = end + 1
        if start < len(chunk):
            self._hold(chunk[start:])

    def reading(self) -> Reading:
        self._n_before = self.n_events
        return Reading(READS_EVENTS, self._is_skipping, bytes(self._line))

    def passed(self, report: Report) -> None:
        self.n_events = self._n_before + report.n_events
        for each in report.found:
            if each in _DROPPED:
                self._gap = _DROPPED[each]
            else:
                self._merge(each)
        if report.is_over:
            self._line.clear()
            self._is_skipping = report.is_skipping
            self._hold(report.held)

    def end(self) -> Usage | UsageGap:
        self._read(bytes(self._line))
        return self._usage or self._gap

    def _hold(self, piece: bytes) -> None:
        """Keep the beginning of a line until its end; a line that is too long is dropped."""
        if self._is_skipping:
            return
        n_bytes = len(self._line) + len(piece)
        if n_bytes <= self._n_allowed or (n_bytes <= MAX_HELD_BYTES and self._allow(n_bytes)):
            self._line += piece
            return
        self._skip(UsageGap.TOO_LONG if n_bytes > MAX_HELD_BYTES else UsageGap.OVERLOAD)

    def _skip(self, why: UsageGap) -> None:
        """Read nothing up to the next end of a line."""
        self._line.clear()
        self._is_skipping = True
        self._gap = why

    def _allow(self, n_bytes: int) -> bool:
        """Hold as much as the longest line so far, until the stream ends."""
        if not self._budget.hold(n_bytes - self._n_allowed):
            return False
        self._n_allowed = n_bytes
        return True

    def _read(self, line: bytes) -> None:
        if not line.startswith(b"data:") or line.startswith(_DONE):
            return
        self.n_events += 1
        if _SHOWS_USAGE.search(line):
            self._merge(line)

    def _merge(self, line: bytes) -> None:
        try:
            self._usage = _merged(self._usage, line[5:])
        except _NOT_JSON:
            self._gap = UsageGap.MALFORMED


class _Holder(msgspec.Struct):
    """An object with `usage`, undecoded, so that a field of that name with another meaning does no harm."""

    usage: Raw = Raw(b"null")


class _Body(_Holder):
    """A response or event. Events of the responses API nest it in `response`, those of the messages API in `message`."""

    response: Raw = Raw(b"null")
    message: Raw = Raw(b"null")


class _Counts(msgspec.Struct):
    prompt_tokens: Any = None
    input_tokens: Any = None
    completion_tokens: Any = None
    output_tokens: Any = None
    prompt_tokens_details: Any = None
    input_tokens_details: Any = None
    cache_read_input_tokens: Any = None
    cache_creation_input_tokens: Any = None


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_holder = msgspec.json.Decoder(_Holder).decode
_decode_counts = msgspec.json.Decoder(_Counts).decode

_SHOWS_USAGE = re.compile(rb'"usage"(?![ \t\r]*:[ \t\r]*null)')
"""Most events of a stream say that they have none."""

_DROPPED = {b"!too_long": UsageGap.TOO_LONG, b"!overload": UsageGap.OVERLOAD}
_DONE = (b"data: [DONE]", b"data:[DONE]")
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _merged(known: Usage | None, data: bytes | bytearray) -> Usage | None:
    """Return the known usage, updated by a JSON object.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the data is not JSON.
    """
    try:
        usage = _usage_object(_decode_body(data))
    except msgspec.ValidationError:
        return known
    if usage is None:
        return known
    new = _usage_of(_decode_counts(usage))
    if known is None:
        return new
    return Usage(
        prompt_tokens=known.prompt_tokens if new.prompt_tokens is None else new.prompt_tokens,
        cached_tokens=known.cached_tokens if new.cached_tokens is None else new.cached_tokens,
        output_tokens=known.output_tokens if new.output_tokens is None else new.output_tokens,
    )


def _usage_object(body: _Body) -> Raw | None:
    if _is_object(body.usage):
        return body.usage
    for inner in (body.response, body.message):
        if _is_object(inner) and _is_object(usage := _decode_holder(inner).usage):
            return usage
    return None


def _usage_of(counts: _Counts) -> Usage:
    prompt = _first(counts.prompt_tokens, counts.input_tokens)
    cached = _first(
        _detail(counts.prompt_tokens_details),
        _detail(counts.input_tokens_details),
        counts.cache_read_input_tokens,
    )
    if prompt is not None:
        # Anthropic counts tokens read from or written to the cache separately from the rest of the prompt.
        prompt += _number(counts.cache_read_input_tokens) or 0
        prompt += _number(counts.cache_creation_input_tokens) or 0
    return Usage(prompt, cached, _first(counts.completion_tokens, counts.output_tokens))


def _is_object(raw: Raw) -> bool:
    return bytes(memoryview(raw)[:1]) == b"{"


def _detail(details: object) -> object:
    return cast("dict[str, object]", details).get("cached_tokens") if isinstance(details, dict) else None


def _first(*values: object) -> int | None:
    return next((number for value in values if (number := _number(value)) is not None), None)


def _number(value: object) -> int | None:
    """Return a count, in whatever form: 7, 7.0 or "7"."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return None
    return int(number) if 0 <= number <= MAX_COUNT else None
