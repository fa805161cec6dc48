from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.api.errors import ExtProcError
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.messages import (
    MAX_HEADERS,
    MAX_MESSAGE_OVERHEAD_BYTES,
    Message,
    message_by_library,
    read_message,
)
from support.ext_proc import BUFFERED, request_body, request_headers, request_trailers, subset_hint

DESTINATION = "x-gateway-destination-endpoint"


def shown(read: Callable[[bytes], Message], data: bytes) -> object:
    """Return everything that the machine sees of a message, or the error."""
    try:
        found = read(data)
    except ExtProcError as error:
        return error.reason, str(error)
    metadata = found.metadata or pb.Metadata()
    return (
        (found.kind, found.n_bytes, found.end_of_stream, found.body),
        (list(found.headers.items()), found.n_headers, found.modes),
        found.header_map() if found.kind.endswith("headers") else None,
        {name: struct for name, struct in metadata.filter_metadata.items() if struct.fields},
    )


def with_headers(*headers: pb.HeaderValue, end: bool = False) -> pb.HttpHeaders:
    return pb.HttpHeaders(headers=pb.HeaderMap(headers=headers), end_of_stream=end)


@pytest.mark.parametrize(
    ("data", "is_usual"),
    [
        pytest.param(request_headers(config=BUFFERED).SerializeToString(), True, id="headers"),
        pytest.param(request_headers(end=True).SerializeToString(), True, id="headers_that_end_the_request"),
        pytest.param(request_body(b"{}", end=True).SerializeToString(), True, id="body"),
        pytest.param(request_body(b"\0" * 70_000).SerializeToString(), True, id="long_body"),
        pytest.param(request_body(b"{}", metadata=pb.Metadata()).SerializeToString(), True, id="no_metadata"),
        pytest.param(
            request_body(b"{}", metadata=subset_hint(["10.0.0.1"])).SerializeToString(), False, id="metadata"
        ),
        pytest.param(
            pb.ProcessingRequest(
                response_headers=with_headers(), attributes={"a": Struct(fields={"b": Value(number_value=1)})}
            ).SerializeToString(),
            False,
            id="attributes",
        ),
        pytest.param(request_trailers().SerializeToString(), False, id="trailers"),
        pytest.param(b"", False, id="nothing"),
        pytest.param(b"\x22\x00\x22\x00", False, id="body_twice"),
        pytest.param(b"\x12\x00\x22\x00", False, id="headers_and_body"),
        pytest.param(b"\x12\x04\x0a\x00\x0a\x00", False, id="header_map_twice"),
        pytest.param(b"\x22\x02\x10\x02", False, id="end_that_is_two"),
        pytest.param(b"\x22\x03\x10\x81\x00", False, id="end_in_two_bytes"),
        pytest.param(b"\x22\x02\x18\x01", False, id="unknown_field_of_a_body"),
        pytest.param(b"\x50\x01\x22\x00", False, id="unknown_field"),
        pytest.param(b"\x22\x05\x0a", False, id="cut_off"),
        pytest.param(b"\x22\xff\xff\xff\xff\xff\x01", False, id="endless_length"),
        pytest.param(b"\x12\x08\x0a\x06\x0a\x04\x0a\x02\xc3\xa9", False, id="name_beyond_ascii"),
        pytest.param(b"\x12\x07\x0a\x05\x0a\x03\x12\x01\xff", False, id="value_that_is_not_utf8"),
        pytest.param(b"\x12\x07\x0a\x05\x0a\x03\x1a\x01\xff", True, id="raw_value_that_is_not_utf8"),
    ],
)
def test_message_is_the_librarys_when_the_native_part_reads_it(data: bytes, *, is_usual: bool) -> None:
    pytest.importorskip("kvatlas.api.extproc._native", reason="the native part was not built")

    assert shown(read_message, data) == shown(message_by_library, data)
    try:
        by_native = read_message(data).decoded is None
    except ExtProcError:
        by_native = False
    assert by_native is is_usual


@pytest.mark.parametrize("read", [read_message, message_by_library])
def test_headers_are_lower_case_and_the_last_of_repeated_ones(read: Callable[[bytes], Message]) -> None:
    headers = with_headers(
        pb.HeaderValue(key="X-Twice", raw_value=b"1"),
        pb.HeaderValue(key="x-other", value="text", raw_value=b"raw"),
        pb.HeaderValue(key="x-twice", value="2"),
        pb.HeaderValue(key="x-broken", raw_value=b"\xffa"),
        pb.HeaderValue(key=DESTINATION, raw_value=b"6.6.6.6:1"),
    )

    found = read(pb.ProcessingRequest(request_headers=headers).SerializeToString())

    assert list(found.headers.items()) == [("x-twice", "2"), ("x-other", "raw"), ("x-broken", "\ufffda")]
    assert found.n_headers == 5


@pytest.mark.parametrize("read", [read_message, message_by_library])
def test_headers_past_the_limit_are_counted_but_not_read(read: Callable[[bytes], Message]) -> None:
    fields = [pb.HeaderValue(key=f"x-{n}", raw_value=b"1") for n in range(MAX_HEADERS + 2)]

    found = read(pb.ProcessingRequest(response_headers=with_headers(*fields)).SerializeToString())

    assert (len(found.headers), found.n_headers) == (MAX_HEADERS, MAX_HEADERS + 2)


@pytest.mark.parametrize("read", [read_message, message_by_library])
def test_message_is_refused_when_it_is_long_beside_its_body(read: Callable[[bytes], Message]) -> None:
    header = pb.HeaderValue(key="x", raw_value=b"x" * MAX_MESSAGE_OVERHEAD_BYTES)

    with pytest.raises(ExtProcError, match="beside a body"):
        read(pb.ProcessingRequest(request_headers=with_headers(header)).SerializeToString())


short = st.binary(max_size=5)
header = st.builds(
    pb.HeaderValue,
    key=st.sampled_from(["x-a", "X-A", ":path", "", "\u00e9", DESTINATION, "\0"]),
    value=st.sampled_from(
        ["", "v", "\u00e9", "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")]
    ),
    raw_value=short,
)
http_headers = st.builds(
    pb.HttpHeaders,
    headers=st.none() | st.builds(pb.HeaderMap, headers=st.lists(header, max_size=4)),
    end_of_stream=st.booleans(),
)
http_body = st.builds(pb.HttpBody, body=short, end_of_stream=st.booleans())
mode = st.sampled_from([0, 1, 2, 3, 4, 5, 77, 300])
config = st.none() | st.builds(
    pb.ProtocolConfiguration,
    request_body_mode=mode,
    response_body_mode=mode,
    send_body_without_waiting_for_header_response=st.booleans(),
)
metadata = st.sampled_from([None, pb.Metadata(), subset_hint(["10.0.0.1:8000"])])
message = st.one_of(
    st.builds(
        pb.ProcessingRequest, request_headers=http_headers, protocol_config=config, metadata_context=metadata
    ),
    st.builds(
        pb.ProcessingRequest, response_headers=http_headers, protocol_config=config, metadata_context=metadata
    ),
    st.builds(
        pb.ProcessingRequest, request_body=http_body, protocol_config=config, metadata_context=metadata
    ),
    st.builds(
        pb.ProcessingRequest, response_body=http_body, protocol_config=config, metadata_context=metadata
    ),
    st.builds(pb.ProcessingRequest, protocol_config=config, metadata_context=metadata),
)
serialized = message.map(pb.ProcessingRequest.SerializeToString)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return a message with bytes changed, left out, or followed by another message."""
    data = bytearray(draw(serialized))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    end = draw(st.integers(0, len(data)))
    return bytes(data[:end]) + draw(st.sampled_from([b"", bytes(data), b"\x22\x00", b"\x5a\x02\x08\x02"]))


@given(serialized | damaged())
def test_any_message_is_the_librarys(data: bytes) -> None:
    assert shown(read_message, data) == shown(message_by_library, data)
