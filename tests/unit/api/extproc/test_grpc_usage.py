"""Token counts in gRPC's messages: cut anywhere, of several services, hostile."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.extproc.grpc_usage import MAX_MESSAGES, GrpcMessages
from kvatlas.api.extproc.intake import Intake
from kvatlas.api.extproc.usage import MAX_HELD_BYTES
from kvatlas.routing.outcome import Usage, UsageGap
from support.protobuf import content, frame, number, packed


def chunk(n_new: int, *, prompt: int = 100, cached: int = 64, index: int = 0) -> bytes:
    """Return a message with the tokens that are new of a choice, as vLLM sends it."""
    ids = packed(1, *[70_000] * n_new)
    return frame(
        content(1, ids + number(2, prompt) + number(3, n_new) + number(4, cached) + number(7, index))
    )


def complete(n_tokens: int, *, index: int = 0) -> bytes:
    """Return the message at the end of a choice: of a stream it repeats the last tokens, otherwise it has all of them."""
    counts = number(3, 100) + number(4, n_tokens) + number(5, 64) + number(8, index)
    return frame(content(2, packed(1, *[70_000] * n_tokens) + content(2, b"stop") + counts))


COMPLETE = complete(3)
EMBEDDED = frame(content(1, b"\x00\x00\x80\x3f" * 4) + number(2, 100) + number(3, 4))
JSON = json.dumps({"usage": {"prompt_tokens": 100, "completion_tokens": 3}}).encode()
WRAPPED = frame(content(1, b"application/json") + content(2, JSON))
STREAM = chunk(1) + chunk(2) + chunk(1) + complete(1)


def reader() -> GrpcMessages:
    return GrpcMessages(Intake().share(lambda _: None))


def read(*pieces: bytes) -> tuple[Usage | UsageGap, int]:
    found = reader()
    for piece in pieces:
        found.feed(piece)
    return found.end(), found.n_events


@pytest.mark.parametrize(
    ("body", "usage", "n_events"),
    [
        pytest.param(STREAM, Usage(100, 64, 4), 3, id="stream"),
        pytest.param(
            chunk(1) + chunk(2) + complete(3), Usage(100, 64, 3), 2, id="stream_with_all_at_its_end"
        ),
        pytest.param(
            chunk(1) + chunk(1, index=1) + chunk(2) + complete(2) + chunk(1, index=1) + complete(1, index=1),
            Usage(100, 64, 5),
            4,
            id="stream_of_two_choices",
        ),
        pytest.param(COMPLETE, Usage(100, 64, 3), 0, id="complete"),
        pytest.param(complete(3) + complete(2, index=1), Usage(100, 64, 5), 0, id="two_choices"),
        pytest.param(
            chunk(1) + frame(b"x", flag=1) + chunk(1) + complete(1),
            Usage(100, 64, None),
            2,
            id="stream_with_a_message_that_is_not_read",
        ),
        pytest.param(
            chunk(1) + frame(b"\xff"),
            Usage(100, 64, None),
            1,
            id="stream_with_a_malformed_message_at_its_end",
        ),
        pytest.param(chunk(2), Usage(100, 64, 2), 1, id="stream_that_broke_off"),
        pytest.param(EMBEDDED, Usage(100, None, 0), 0, id="embedding"),
        pytest.param(WRAPPED, Usage(100, None, 3), 0, id="json_inside"),
        pytest.param(frame(content(2, b"data: " + JSON)), Usage(100, None, 3), 0, id="event_inside"),
        pytest.param(
            chunk(3, prompt=2**64 - 1, cached=2**63), Usage(None, None, 3), 1, id="negative_numbers"
        ),
        pytest.param(chunk(3, prompt=2**53 + 1), Usage(None, 64, 3), 1, id="no_count_of_tokens"),
        pytest.param(b"", UsageGap.ABSENT, 0, id="empty"),
        pytest.param(frame(b""), UsageGap.ABSENT, 0, id="empty_message"),
        pytest.param(frame(content(1, packed(1, 7))), UsageGap.ABSENT, 1, id="chunk_without_counts"),
        pytest.param(frame(b"\xff"), UsageGap.MALFORMED, 0, id="no_message"),
        pytest.param(frame(b"x", flag=1), UsageGap.ENCODED, 0, id="compressed"),
        pytest.param(frame(number(9, 0) * 65), UsageGap.MALFORMED, 0, id="too_many_fields"),
    ],
)
def test_counts_are_those_of_the_last_message_and_generated_tokens_add_up(
    body: bytes, usage: Usage | UsageGap, n_events: int
) -> None:
    assert read(body) == (usage, n_events)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_counts_do_not_depend_on_the_cuts(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in pairwise(places)]
    assert read(*pieces) == (Usage(100, 64, 4), 3)


@given(body=st.binary(max_size=80))
def test_any_body_is_survived(body: bytes) -> None:
    usage, n_events = read(body, body)
    assert isinstance(usage, Usage | UsageGap)
    assert n_events <= len(body)


def test_message_that_is_too_long_is_skipped_and_the_next_one_read() -> None:
    intake = Intake()
    found = GrpcMessages(intake.share(lambda _: None))
    found.feed((MAX_HELD_BYTES + 1).to_bytes(5, "big"))
    for _ in range(MAX_HELD_BYTES // 65_536):
        found.feed(bytes(65_536))
    assert intake.n_bytes == 0
    found.feed(b"\0" + COMPLETE)
    assert found.end() == Usage(100, 64, None)


def test_piece_of_too_many_messages_ends_the_reading() -> None:
    assert read(frame(b"") * (MAX_MESSAGES + 2), COMPLETE) == (UsageGap.TOO_LONG, 0)
