"""Prebuilt answers say what protobuf would."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.replies import (
    MAX_AT_ONCE_BYTES,
    MAX_CHUNK_BYTES,
    HeaderEdits,
    LongReply,
    Replies,
    destination_on_body,
    destination_on_headers,
    request_body_chunks,
    response_body_chunks,
)
from support.ext_proc import messages, metadata_destination, set_headers, streamed

Chunks = Callable[..., Replies]
both_phases = pytest.mark.parametrize(
    ("make", "kind"), [(request_body_chunks, "request_body"), (response_body_chunks, "response_body")]
)


@both_phases
@pytest.mark.parametrize("end", [True, False])
@given(size=st.integers(0, 70_000), byte=st.integers(0, 255))
@example(size=MAX_CHUNK_BYTES, byte=255)
@example(size=255, byte=255)
@example(size=MAX_AT_ONCE_BYTES + 1, byte=1)
def test_chunks_are_the_body(make: Chunks, kind: str, end: bool, size: int, byte: int) -> None:
    body = bytes([byte]) * size

    chunks = streamed(
        [pb.ProcessingResponse.FromString(each) for each in messages(make(body, end_of_stream=end))], kind
    )

    assert b"".join(chunk for chunk, _ in chunks) == body
    assert [ends for _, ends in chunks] == [False] * (len(chunks) - 1) + [end] * bool(chunks)
    assert all(len(chunk) <= MAX_CHUNK_BYTES for chunk, _ in chunks)


@both_phases
def test_chunk_is_written_as_protobuf_writes_it(make: Chunks, kind: str) -> None:
    for size in (*range(300), 16_300, 16_400, MAX_CHUNK_BYTES):
        chunk = pb.StreamedBodyResponse(body=b"\xfe" * size, end_of_stream=True)
        answer = pb.BodyResponse(
            response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=chunk))
        )
        request = pb.ProcessingResponse(request_body=answer)
        expected = request if kind == "request_body" else pb.ProcessingResponse(response_body=answer)
        assert make(b"\xfe" * size, end_of_stream=True) == (expected.SerializeToString(),)


def test_long_body_replaced_is_the_message_of_protobuf() -> None:
    body, edits = b"x" * (MAX_AT_ONCE_BYTES + 1), HeaderEdits((("x-a", b"1"),), ("x-b",))

    reply = destination_on_body("10.0.0.1:80", edits, body)

    assert isinstance(reply, LongReply)
    (long,) = (pb.ProcessingResponse.FromString(each) for each in reply.messages)
    short = destination_on_body("10.0.0.1:80", edits, b"y")
    assert isinstance(short, bytes)
    expected = pb.ProcessingResponse.FromString(short)
    expected.request_body.response.body_mutation.body = body
    assert long == expected


@pytest.mark.parametrize("make", [destination_on_headers, destination_on_body])
def test_edits_of_one_request_do_not_show_in_the_next(make: Callable[..., bytes]) -> None:
    plain = make("10.0.0.1:80")
    edited = pb.ProcessingResponse.FromString(make("10.0.0.1:80", HeaderEdits((("x-a", b"1"),), ("x-b",))))

    assert set_headers(edited) == {"x-gateway-destination-endpoint": "10.0.0.1:80", "x-a": "1"}
    assert metadata_destination(edited) == "10.0.0.1:80"
    assert make("10.0.0.1:80") == plain
    assert set_headers(pb.ProcessingResponse.FromString(plain)).keys() == {"x-gateway-destination-endpoint"}
