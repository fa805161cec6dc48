"""The body of a long message is taken out before it is decoded; other long messages are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.body_frame import split
from support.ext_proc import DUPLEX, request_body, request_headers, response_body, subset_hint

N_OTHERS = 1000
LONG = "x" * 2000


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(request_body(b"x" * 20_000, end=True), True, id="request_body"),
        pytest.param(response_body(b"x" * 20_000, end=True), True, id="response_body"),
        pytest.param(request_body(b"x" * 20_000, metadata=subset_hint(["a:1"])), True, id="with_metadata"),
        pytest.param(
            request_body(b"x" * 20_000, metadata=subset_hint([LONG])), False, id="with_long_metadata"
        ),
        pytest.param(request_headers(("x", LONG), config=DUPLEX), False, id="headers"),
        pytest.param(pb.ProcessingRequest(metadata_context=subset_hint([LONG])), False, id="metadata"),
        pytest.param(
            pb.ProcessingRequest(response_body=pb.HttpBody(end_of_stream=True)), False, id="no_body"
        ),
    ],
)
def test_body_is_told_from_other_messages(message: pb.ProcessingRequest, expected: bool) -> None:
    serialized = message.SerializeToString()

    assert (split(serialized, N_OTHERS) is not None) is expected


@given(st.binary(max_size=40).map(lambda start: (b"\x22" + start).ljust(5000, b"\xff")))
def test_any_bytes_are_read(message: bytes) -> None:
    if (parts := split(message, N_OTHERS)) is not None:
        assert parts[1] in message


@pytest.mark.parametrize("n_bytes", [127, 128, 20_000, 3_000_000])
@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("kind", ["request_body", "response_body"])
def test_both_parts_are_the_message(n_bytes: int, end: bool, kind: str) -> None:
    body = pb.HttpBody(body=b"x" * n_bytes, end_of_stream=end)
    message = pb.ProcessingRequest(metadata_context=subset_hint(["a:1"]), protocol_config=DUPLEX)
    getattr(message, kind).CopyFrom(body)

    parts = split(message.SerializeToString(), N_OTHERS)

    assert parts is not None
    rest = pb.ProcessingRequest.FromString(parts[0])
    assert parts[1] == body.body
    assert getattr(rest, kind) == pb.HttpBody(end_of_stream=end)
    getattr(rest, kind).body = parts[1]
    assert rest == message


@pytest.mark.parametrize("n_missing", [1, 3000])
def test_message_that_ends_too_early_has_no_body(n_missing: int) -> None:
    message = request_body(b"x" * 20_000, end=True).SerializeToString()

    assert split(message[:-n_missing], N_OTHERS) is None
