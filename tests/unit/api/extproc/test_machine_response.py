"""The response phase of an ext-proc stream and its end; the ids are the numbers of the protocol cases."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct, Value
from msgspec.structs import replace

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.routing.outcome import Completion, Outcome, Response, ResponseBegun
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    make_route,
    metadata_of,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
)

ROUTE = make_route("10.0.0.1:8000")
JSON = b'{"id":"cmpl-1","usage":{"prompt_tokens":7}}'
SSE = b'data: {"choices":[]}\n\ndata: [DONE]\n\n'
REQUEST = (request_headers(config=DUPLEX), request_body(b"{}", end=True))
DUPLEX_REQUEST = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED, response_body_mode=pb.ProcessingMode.NONE
)
HEADERS_REQUEST = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.NONE, response_body_mode=pb.ProcessingMode.NONE
)
BUFFERED_SHOWING_RESPONSE = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.BUFFERED, response_body_mode=pb.ProcessingMode.STREAMED
)


@pytest.mark.parametrize(
    "chunks",
    [
        pytest.param([(JSON, True)], id="P2_whole"),
        pytest.param([(JSON, False), (b"", True)], id="P2_empty_end"),
        pytest.param([(b"<html", False), (b">", True)], id="P3_not_json"),
        pytest.param([(SSE[:30], False), (SSE[30:], False), (b"", True)], id="P4_events"),
        pytest.param([(bytes([byte]), False) for byte in SSE] + [(b"", True)], id="P4_every_byte"),
    ],
)
def test_duplex_response_passes_chunk_by_chunk(chunks: list[tuple[bytes, bool]]) -> None:
    driver = MachineDriver(ROUTE)
    driver.send(*REQUEST)

    assert driver.send(response_headers()) == [
        pb.ProcessingResponse(response_headers=pb.HeadersResponse())
    ]  # P1
    for body, end in chunks:
        assert streamed(driver.send(response_body(body, end=end)), "response_body") == [(body, end)]

    assert driver.close().outcome is Outcome.COMPLETED


def test_duplex_response_with_trailers_passes() -> None:
    driver = MachineDriver(ROUTE)
    driver.send(*REQUEST, response_headers())

    replies = driver.send(response_body(JSON), response_trailers())

    assert streamed(replies[:1], "response_body") == [(JSON, False)]  # P10
    assert replies[1] == pb.ProcessingResponse(response_trailers=pb.TrailersResponse())
    assert driver.close().outcome is Outcome.COMPLETED


def test_stream_that_starts_at_the_response_is_answered() -> None:
    driver = MachineDriver(ROUTE)

    replies = driver.send(response_headers(), response_body(JSON, end=True))

    assert replies[0] == pb.ProcessingResponse(response_headers=pb.HeadersResponse())  # P11
    assert streamed(replies[1:], "response_body") == [(JSON, True)]
    assert driver.close() == Completion("", None, Outcome.COMPLETED, response=Response(status=200))


@pytest.mark.parametrize("mode", ["STREAMED", "BUFFERED", "BUFFERED_PARTIAL"])
def test_response_body_is_left_alone_when_the_mode_wants_no_body_back(mode: str) -> None:
    driver = MachineDriver(ROUTE)
    config = pb.ProtocolConfiguration(response_body_mode=pb.ProcessingMode.BodySendMode.Value(mode))

    replies = driver.send(response_headers(config=config), response_body(JSON, end=True))

    assert replies[1] == pb.ProcessingResponse(response_body=pb.BodyResponse())
    assert driver.close().outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("config", "body", "is_hidden"),
    [
        pytest.param(DUPLEX_REQUEST, b"{}", True, id="duplex"),
        pytest.param(DUPLEX_REQUEST, b"", True, id="duplex_without_body"),
        pytest.param(BUFFERED, b"{}", False, id="buffered"),
        pytest.param(BUFFERED, b"", True, id="buffered_without_body"),
        pytest.param(HEADERS_REQUEST, b"", True, id="headers_alone"),
    ],
)
def test_answer_is_hidden_when_the_stream_ends_with_the_request(
    config: pb.ProtocolConfiguration, body: bytes, *, is_hidden: bool
) -> None:
    driver = MachineDriver(ROUTE)

    driver.send(
        request_headers(config=config, end=not body), *([request_body(body, end=True)] if body else [])
    )

    completion = driver.close()
    assert (completion.outcome, completion.is_hidden) == (Outcome.ROUTED, is_hidden)


@pytest.mark.parametrize(
    ("messages", "outcome"),
    [
        pytest.param([], Outcome.ABORTED, id="no_message"),
        pytest.param([request_headers(config=DUPLEX)], Outcome.ABORTED, id="P14_before_the_body_ended"),
        pytest.param(REQUEST, Outcome.ABORTED, id="P14_before_the_response"),
        pytest.param(
            [request_headers(config=BUFFERED), request_body(b"{}")],
            Outcome.ROUTED,
            id="response_is_not_shown",
        ),
        pytest.param([*REQUEST, response_headers()], Outcome.ABORTED, id="P14_after_response_headers"),
        pytest.param(
            [*REQUEST, response_headers(), response_body(SSE)], Outcome.ABORTED, id="P14_amid_the_response"
        ),
        pytest.param([*REQUEST, response_headers(end=True)], Outcome.COMPLETED, id="response_without_body"),
        pytest.param(
            [request_headers(config=BUFFERED), request_body(b"{}"), response_headers()],
            Outcome.COMPLETED,
            id="response_headers_alone_are_shown",
        ),
        pytest.param(
            [request_headers(config=BUFFERED_SHOWING_RESPONSE), request_body(b"{}"), response_headers()],
            Outcome.ABORTED,
            id="P14_buffered_amid_the_response",
        ),
    ],
)
def test_end_of_the_stream_tells_how_far_the_request_came(
    messages: list[pb.ProcessingRequest], outcome: Outcome
) -> None:
    driver = MachineDriver(ROUTE)

    driver.send(*messages)

    assert driver.close().outcome is outcome


def test_completion_carries_the_route() -> None:
    driver = MachineDriver(ROUTE)

    driver.send(*REQUEST, response_headers(end=True))

    response = Response(status=200, time_to_end_s=0.0)
    assert driver.close() == Completion("id-1", ROUTE, Outcome.COMPLETED, response=response)


UPSTREAM = {
    "envoy.filters.http.ext_proc": Struct(fields={"upstream.address": Value(string_value="10.0.0.2:8000")})
}
SERVED = metadata_of("envoy.lb", "x-gateway-destination-endpoint-served", Value(string_value="10.0.0.3:8000"))
PICKED = metadata_of("envoy.lb", "x-gateway-destination-endpoint", Value(string_value="10.0.0.1:8000"))


@pytest.mark.parametrize(
    ("metadata", "attributes", "served"),
    [
        pytest.param(SERVED, UPSTREAM, "10.0.0.3:8000", id="P12_metadata_wins"),
        pytest.param(PICKED, UPSTREAM, "10.0.0.2:8000", id="P12_attribute"),
        pytest.param(None, UPSTREAM, "10.0.0.2:8000", id="P12_attribute_alone"),
        pytest.param(PICKED, {}, None, id="P12_untold"),
        pytest.param(
            None,
            {"envoy.filters.http.ext_proc": Struct(fields={"upstream.address": Value(number_value=1)})},
            None,
            id="P12_not_a_string",
        ),
    ],
)
def test_completion_tells_who_served(
    metadata: pb.Metadata | None, attributes: dict[str, Struct], served: str | None
) -> None:
    driver = MachineDriver(ROUTE)
    message = pb.ProcessingRequest(
        response_headers=pb.HttpHeaders(end_of_stream=True), metadata_context=metadata, attributes=attributes
    )

    driver.send(*REQUEST, message)

    assert driver.close().served == served


EVENT_STREAM = ("content-type", "text/event-stream; charset=utf-8")


@pytest.mark.parametrize(
    ("config", "headers", "is_first_token"),
    [
        pytest.param(DUPLEX, response_headers(EVENT_STREAM), True, id="event_stream"),
        pytest.param(DUPLEX, response_headers(("content-type", "application/json")), False, id="one_json"),
        pytest.param(DUPLEX, response_headers(), False, id="no_content_type"),
        pytest.param(DUPLEX, response_headers(EVENT_STREAM, status="503"), False, id="error"),
        pytest.param(BUFFERED_SHOWING_RESPONSE, response_headers(EVENT_STREAM), True, id="shown_by_copy"),
        pytest.param(
            pb.ProtocolConfiguration(
                request_body_mode=pb.ProcessingMode.BUFFERED, response_body_mode=pb.ProcessingMode.BUFFERED
            ),
            response_headers(EVENT_STREAM),
            False,
            id="shown_when_whole",
        ),
    ],
)
def test_first_bytes_of_an_answer_are_told_once(
    config: pb.ProtocolConfiguration, headers: pb.ProcessingRequest, *, is_first_token: bool
) -> None:
    driver = MachineDriver(ROUTE)
    driver.send(request_headers(config=config), request_body(b"{}", end=True), headers, response_body())
    assert driver.begun == [], "headers and empty chunks are no answer"

    driver.send(response_body(b"data"), response_body(b"more"), response_body(end=True))

    assert driver.begun == [ResponseBegun(ROUTE, is_first_token, None)]


def test_first_bytes_come_with_the_endpoint_that_sent_them() -> None:
    served = metadata_of(
        "envoy.lb", "x-gateway-destination-endpoint-served", Value(string_value="10.0.0.2:8000")
    )
    driver = MachineDriver(ROUTE)

    driver.send(*REQUEST, response_headers(EVENT_STREAM, metadata=served), response_body(SSE))

    assert driver.begun == [ResponseBegun(ROUTE, is_first_token=True, served="10.0.0.2:8000")]


def test_answer_to_no_request_is_not_told() -> None:
    driver = MachineDriver(ROUTE)

    driver.send(response_headers(EVENT_STREAM), response_body(SSE))

    assert driver.begun == []


def test_headers_of_the_route_are_set_on_the_response() -> None:
    marked = replace(ROUTE, response_headers={"x-session-token": "Yg=="})
    driver = MachineDriver(marked)
    driver.send(*REQUEST)

    (reply,) = driver.send(response_headers())

    (option,) = reply.response_headers.response.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value) == ("x-session-token", b"Yg==")
    assert option.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
