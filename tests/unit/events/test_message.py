"""Messages of publishers: a sequence number, and a batch or the reason why it is unreadable."""

from __future__ import annotations

import msgspec
import pytest

from kvatlas.events.errors import FAILED, FrameError, describe
from kvatlas.events.message import END_OF_REPLAY, MAX_SEQ, Unreadable, read_message
from kvatlas.events.model import AllBlocksCleared, Batch
from kvatlas.events.wire import decode_batch

SEVEN = (7).to_bytes(8, "big")
PAYLOAD = msgspec.msgpack.encode([1.5, [["AllBlocksCleared"]]])


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param([b"topic", SEVEN, PAYLOAD], id="live"),
        pytest.param([SEVEN, PAYLOAD], id="no_topic"),
        pytest.param([b"", b"", SEVEN, PAYLOAD], id="replay"),
    ],
)
def test_message_is_number_and_batch_when_both_can_be_read(frames: list[bytes]) -> None:
    seq, content, _ = read_message(frames, decode_batch)
    assert not isinstance(content, Unreadable)
    assert (seq, content.timestamp, list(content)) == (7, 1.5, [AllBlocksCleared()])


def test_message_names_the_life_of_a_publisher_with_snapshots() -> None:
    life = bytes(range(16))
    assert read_message([b"topic", SEVEN + life, PAYLOAD], decode_batch)[::2] == (7, life)
    assert read_message([b"topic", SEVEN, PAYLOAD], decode_batch).life == b""


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        pytest.param(b"\xc1", "not_msgpack", id="not_msgpack"),
        pytest.param(msgspec.msgpack.encode("text"), "not_a_batch", id="not_a_batch"),
    ],
)
def test_content_names_the_reason_when_the_payload_is_no_batch(payload: bytes, reason: str) -> None:
    seq, content, _ = read_message([b"topic", SEVEN, payload], decode_batch)
    assert isinstance(content, Unreadable)
    assert (seq, content.reason) == (7, reason)
    assert content.detail


def test_batch_is_readable_when_all_its_events_are_rejected_and_its_time_is_0() -> None:
    payload = msgspec.msgpack.encode([0.0, [["BlockRemoved", None]]])
    _, content, _ = read_message([b"topic", SEVEN, payload], decode_batch)
    assert not isinstance(content, Unreadable)
    assert content.rejected == ("bad_hashes",)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        pytest.param([], r"parts of \[\] bytes", id="no_part"),
        pytest.param([b"alone"], r"parts of \[5\] bytes", id="one_part"),
        pytest.param([b"t", b"\0" * 4, PAYLOAD], r"parts of \[1, 4, ", id="short_number"),
        pytest.param([b"t", END_OF_REPLAY, PAYLOAD], "ends a replay", id="end_of_replay"),
    ],
)
def test_message_is_refused_when_its_parts_are_wrong(frames: list[bytes], message: str) -> None:
    with pytest.raises(FrameError, match=message):
        read_message(frames, decode_batch)


def test_bug_of_the_decoder_makes_the_message_unreadable_without_its_values() -> None:
    def decode(payload: bytes) -> Batch:
        raise KeyError(payload)

    seq, content, _ = read_message([SEVEN, b"secret"], decode)
    assert isinstance(content, Unreadable)
    assert (seq, content.reason, content.size_bytes) == (7, FAILED, 0)
    assert content.detail.startswith("KeyError in decode (events/test_message.py:")
    assert describe(KeyError("secret")) == "KeyError"


def test_number_that_no_publisher_reaches_is_refused() -> None:
    with pytest.raises(FrameError, match="49 bits"):
        read_message([MAX_SEQ.to_bytes(8, "big"), PAYLOAD], decode_batch)
