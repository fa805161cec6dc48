"""Halves of surrogate pairs in JSON: escapes that stand for no character, which some clients send and decoders refuse."""

from __future__ import annotations

import re

MAX_BYTES = 256 * 1024
"""A longer body is not mended, since the event loop waits."""

MAX_HALVES = 1000
"""A body with more of them is not mended; each takes a microsecond."""

_UP_TO_HALF = re.compile(
    rb"""(?:
        [^\\]++
        | \\[^u]  # any other escape, so that what follows begins none
        | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}  # a pair
        | \\u(?![dD][89a-fA-F])
    )*+
    (\\u[dD][89a-fA-F][0-9a-fA-F]{2})""",
    re.VERBOSE,
)


def without_halves(body: bytes) -> bytes | None:
    """Replace escapes of half a pair by that of U+FFFD, as Go's decoder reads them.

    Returns:
        None if there are none, or more than `MAX_HALVES`, or the body is too long.
    Cost: one pass over the bytes, 7 ms at most.
    """
    if len(body) > MAX_BYTES:
        return None
    pieces: list[bytes] = []
    at = 0
    while (found := _UP_TO_HALF.match(body, at)) is not None:
        if len(pieces) == MAX_HALVES:
            return None
        pieces.append(body[at : found.start(1)])
        at = found.end()
    return rb"\ufffd".join([*pieces, body[at:]]) if pieces else None
