"""ZMQ messages of publishers: parts to a sequence number and a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from .errors import FAILED, FrameError, WireError, describe
from .model import Batch

END_OF_REPLAY = b"\xff" * 8
"""Sequence number of the message that ends a replay."""

MAX_SEQ = 1 << 48
"""Numbers from here on are refused; a publisher of 100,000 batches per second takes 89 years to get there."""

HARMLESS = frozenset({"unknown_tag"})
"""Rejections of events that leave the known state correct: an event type that engines have added."""

_SEQ_BYTES = 8

LIFE_BYTES = 16
"""Length of the id of a publisher's life, a UUID, that follows the number if the publisher has snapshots."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A payload that is not a batch.

    Attributes:
        reason: of the `WireError`, one bounded word for counters.
        detail: its message, for the log.
        size_bytes: of what is kept of it.
    """

    reason: str
    detail: str
    size_bytes: ClassVar[int] = 0


class Message(NamedTuple):
    """A sequence number, the payload that came with it, and the id of the publisher's life, empty if it sends none."""

    seq: int
    content: Batch | Unreadable
    life: bytes


def read_message(frames: list[bytes], decode: Callable[[bytes], Batch]) -> Message:
    """Read `[..., 8-byte sequence, payload]`; the sequence may be followed by the 16 bytes of an id.

    Args:
        frames: parts of the message.
        decode: decodes the payload, as `wire.decode_batch` does.
    Raises:
        FrameError: the parts are others, or no publisher comes to that number.
    """
    if len(frames) < 2 or len(frames[-2]) not in (_SEQ_BYTES, _SEQ_BYTES + LIFE_BYTES):
        sizes = [len(frame) for frame in frames]
        raise FrameError(f"message has parts of {sizes} bytes, want [topic, 8-byte sequence, payload]")
    if frames[-2] == END_OF_REPLAY:
        raise FrameError("batch has the sequence number 2**64 - 1, which ends a replay")
    seq, life = int.from_bytes(frames[-2][:_SEQ_BYTES], "big"), frames[-2][_SEQ_BYTES:]
    if seq >= MAX_SEQ:
        raise FrameError(f"batch has a sequence number of {seq.bit_length()} bits, want at most 48")
    try:
        return Message(seq, decode(frames[-1]), life)
    except WireError as error:
        return Message(seq, Unreadable(error.reason, str(error)), life)
    except Exception as error:  # noqa: BLE001 - a bug of the decoder must not end the reception
        return Message(seq, Unreadable(FAILED, describe(error)), life)
