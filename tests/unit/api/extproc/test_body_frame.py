"""Long messages that are not bodies are found before they are decoded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.body_frame import is_body
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

    assert is_body(serialized + b"\x00" * 16, N_OTHERS) is expected


@given(st.binary(max_size=40).map(lambda start: (b"\x22" + start).ljust(5000, b"\xff")))
def test_any_bytes_are_read(message: bytes) -> None:
    if is_body(message, N_OTHERS):
        assert b"\x0a" in message[:20]
