"""Replacing of `cached_tokens` in a decode engine's answer: only the prefill engine knows what was cached."""

from __future__ import annotations

import json

from support.sidecar.json_values import as_object

_DATA = b"data: "


def cached_tokens_of(answer: object) -> int:
    """Return `usage.prompt_tokens_details.cached_tokens` of a decoded answer, 0 if it has none."""
    details = as_object(as_object(as_object(answer).get("usage")).get("prompt_tokens_details"))
    value = details.get("cached_tokens")
    return value if isinstance(value, int) else 0


def with_cached_tokens(text: bytes, cached: int) -> bytes:
    """Return a JSON answer with the prefill engine's number; `text` itself if it has no usage, or that number already."""
    try:
        answer = as_object(json.loads(text))
    except ValueError:
        return text
    usage = as_object(answer.get("usage"))
    details = as_object(usage.get("prompt_tokens_details"))
    if not usage or details.get("cached_tokens") == cached:
        return text
    new = {**usage, "prompt_tokens_details": {**details, "cached_tokens": cached}}
    return json.dumps({**answer, "usage": new}).encode()


class EventUsage:
    """The same for an answer in server-sent events, which come in pieces of any size.

    Args:
        cached: the prefill engine's number.
    """

    def __init__(self, cached: int) -> None:
        self._cached, self._rest = cached, b""

    def feed(self, piece: bytes) -> bytes:
        """Return the lines that are whole."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return b"".join(self._line(line) + b"\n" for line in lines)

    def end(self) -> bytes:
        """Return the last line, which has no end."""
        return self._line(self._rest)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(_DATA):
            return line
        end = b"\r" if line.endswith(b"\r") else b""
        return _DATA + with_cached_tokens(line[len(_DATA) :].removesuffix(b"\r"), self._cached) + end
