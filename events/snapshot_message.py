"""Messages of a publisher's snapshot socket.

A request is any message; a reply has the number of the last batch that the state contains (signed 64 bits, big endian; -1
before the first batch, less if there is no snapshot), the id of the publisher's life, and payloads like those of batches.
Their events build the state from an empty one: stores, then removals of what is no longer held.
Source: vLLM #57789 (`kv_events_snapshot.py`) as of November 2026, which no release contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .errors import SnapshotError
from .message import LIFE_BYTES, MAX_SEQ

REQUEST = b"snapshot"

_NUMBER_BYTES = 8


class SnapshotReply(NamedTuple):
    """One snapshot: the number of the batch that follows it, the publisher's id, and payloads."""

    next_seq: int
    life: bytes
    payloads: Sequence[bytes]


def read_reply(frames: Sequence[bytes]) -> SnapshotReply:
    """Read a reply without its empty first part.

    Raises:
        SnapshotError: `malformed`, or `unavailable` if the publisher has no snapshot.
    """
    if len(frames) < 2 or len(frames[0]) != _NUMBER_BYTES or len(frames[1]) != LIFE_BYTES:
        sizes = [len(frame) for frame in frames[:4]]
        raise SnapshotError("malformed", f"the reply begins with parts of {sizes} bytes, want 8 and 16")
    last_seq = int.from_bytes(frames[0], "big", signed=True)
    if last_seq < -1:
        raise SnapshotError("unavailable", "the publisher has none: it has lost part of its own record")
    if last_seq >= MAX_SEQ:
        raise SnapshotError("malformed", f"it has a sequence number of {last_seq.bit_length()} bits")
    return SnapshotReply(last_seq + 1, frames[1], frames[2:])
