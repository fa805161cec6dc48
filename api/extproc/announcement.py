"""Events of the responses API that engines send before they begin to compute."""

from __future__ import annotations

_EARLY = (b"response.created", b"response.queued", b"response.in_progress")
"""Source: OpenAIServingResponses of vLLM and SGLang, which send the first and the last of them as soon as they have the request."""

_MAX_HELD_BYTES = 64
"""Beginning of a line that is kept; longer than any early event's line with its name."""

_MAX_PIECE_BYTES = 256 * 1024
"""Longest piece of a body that is read, in a millisecond if it consists of ends of lines."""


def announces(path: str) -> bool:
    """Return whether streamed responses to requests of this path begin with such events."""
    return "/responses" in path and path.partition("?")[0].rstrip("/").endswith("/responses")


class Announcement:
    """Reads the beginning of an event stream, cut anywhere, up to the first event that is no early one."""

    __slots__ = ("_is_early", "_line")

    def __init__(self) -> None:
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
        for line in lines:
            if line.startswith(b"event:"):
                self._is_early = line[len(b"event:") :].strip() in _EARLY
                if not self._is_early:
                    return True
            elif line.startswith(b"data:"):
                if not self._is_early:
                    return True
            elif not line.strip():
                self._is_early = False
        return False
