"""Bodies of responses that pass through the transport's native part, which reports what counts of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ..http2._native import Passage

READS_NOTHING, READS_EVENTS, READS_WHOLE = range(3)
"""What is read out of a body: nothing, lines of an event stream, or one JSON object."""

_BEGUN, _ENDED, _LEFT, _SKIPPING = 1, 2, 4, 8
_NUMBER_BYTES = 8


class Reading(NamedTuple):
    """How far a body has been read.

    Attributes:
        reads: what is read.
        is_skipping: whether the current line, or the object, was dropped.
        held: the beginning of the current line, or of the object.
    """

    reads: int = READS_NOTHING
    is_skipping: bool = False
    held: bytes = b""


class Report(NamedTuple):
    """What a passage has seen since its last report.

    Attributes:
        has_begun: whether the first byte of the body has come.
        has_ended: whether the body is over.
        is_over: whether the passage is: it has ended, or Python goes on.
        n_events: events of a stream since the passage began, without the closing `[DONE]`.
        found: lines with usage, and `!too_long` or `!overload` for each dropped line.
        is_skipping, held: see `Reading`; known if `is_over`.
    """

    has_begun: bool
    has_ended: bool
    is_over: bool
    n_events: int
    found: list[bytes]
    is_skipping: bool
    held: bytes


def passage(
    reading: Reading, *, gives_back: bool, has_begun: bool, leaves_end: bool = False
) -> Passage | None:
    """Return what passes the rest of a body, None if the native part is missing.

    Args:
        reading: where to go on.
        gives_back: whether the gateway wants the body back.
        has_begun: whether a byte of the body was seen before.
        leaves_end: whether its end is for Python.
    """
    try:
        from ._native import response_passage  # noqa: PLC0415 - absent if the extension is not built
    except ImportError:
        return None
    return response_passage(
        gives_back=gives_back,
        has_begun=has_begun,
        leaves_end=leaves_end,
        reads=reading.reads,
        is_skipping=reading.is_skipping,
        held=reading.held,
    )


def read_report(data: bytes) -> Report:
    """Return a report of a passage."""
    flags = data[0]
    start = 1 + 2 * _NUMBER_BYTES
    n_events = int.from_bytes(data[1 : 1 + _NUMBER_BYTES], "little")
    end = start + int.from_bytes(data[1 + _NUMBER_BYTES : start], "little")
    return Report(
        has_begun=bool(flags & _BEGUN),
        has_ended=bool(flags & _ENDED),
        is_over=bool(flags & (_ENDED | _LEFT)),
        n_events=n_events,
        found=data[start:end].split(b"\n")[:-1],
        is_skipping=bool(flags & _SKIPPING),
        held=data[end:],
    )
