"""What engines send in an event stream before the first token: early events of the responses API, and comments."""

from __future__ import annotations

import re

_EARLY = (b"response.created", b"response.queued", b"response.in_progress")
"""Source: OpenAIServingResponses of vLLM and SGLang, which send the first and the last of them as soon as they have the request."""

_ERROR = re.compile(rb'data:\s*\{\s*"error"|event:\s*error\s*$')
"""Source: SGLang, and vLLM if a request fails before its first token; events of that name are those of the messages API."""

_MAX_HELD_BYTES = 64
"""Beginning of a line that is kept; longer than any early event's line with its name."""

_MAX_PIECE_BYTES = 256 * 1024
"""Longest piece of a body that is read, in a millisecond if it consists of ends of lines."""


def announces(path: str) -> bool:
    """Return whether streamed responses to requests of this path begin with such events."""
    return "/responses" in path and path.partition("?")[0].rstrip("/").endswith("/responses")


class Announcement:
    """Reads the beginning of an event stream, cut anywhere, up to the first event that is no early one.

    Comments keep connections alive that are silent while a prompt waits, with `--sse-keep-alive-interval` of vLLM.

    Args:
        has_events: whether early events may come.

    Attributes:
        is_error: whether that first event is an error.
    """

    __slots__ = ("_has_events", "_is_early", "_line", "is_error")

    def __init__(self, *, has_events: bool) -> None:
        self._has_events, self.is_error = has_events, False
        self._is_early = False
        """Whether the current event is an early one."""
        self._line = b""

    def is_over(self, piece: bytes) -> bool:
        """Return whether the next piece of the body has more than early events and comments."""
        if len(piece) > _MAX_PIECE_BYTES:
            return True
        first, *others = piece.split(b"\n")
        lines = [self._line + first, *others]
        self._line = lines.pop()[:_MAX_HELD_BYTES]
        if any(map(self._is_content, lines)):
            return True
        # only the whole name of an event tells whether it is an early one
        return not self._has_events and self._is_content(self._line)

    def _is_content(self, line: bytes) -> bool:
        """Return whether a line, or its beginning, belongs to an event that is no early one."""
        if not line.strip():
            self._is_early = False
            return False
        if self._has_events and line.startswith(b"event:"):
            self._is_early = line[len(b"event:") :].strip() in _EARLY
        elif line.startswith(b":") or (self._has_events and not line.startswith(b"data:")):
            return False
        if not self._is_early:
            self.is_error = _ERROR.match(line) is not None
        return not self._is_early
