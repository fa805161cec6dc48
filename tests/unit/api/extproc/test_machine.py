"""The request phase of an ext-proc stream; the ids are the numbers of the protocol cases."""

from __future__ import annotations

import pytest

from kvatlas.api.errors import ExtProcError
from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.replies import MAX_CHUNK_BYTES
from kvatlas.routing.control_headers import CONTROL_HEADERS
from kvatlas.routing.outcome import Outcome
from kvatlas.routing.router import ModelRewrite, Refusal, RefusalCode
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    kind_of,
    make_route,
    metadata_destination,
    removed_headers,
    request_body,
    request_headers,
    request_trailers,
    response_headers,
    set_headers,
    streamed,
)

DESTINATION = "x-gateway-destination-endpoint"
BODY = b'{"model":"m","messages":[]}'
ROUTE = make_route("10.0.0.1:8000")


def splits(body: bytes) -> list[tuple[str, list[pb.ProcessingRequest]]]:
    """Cut one request body in every way that Envoy may."""
    return [
        ("R1_whole", [request_body(body, end=True)]),
        ("R5_two_chunks", [request_body(body[:7]), request_body(body[7:], end=True)]),
        ("R5_every_byte", [request_body(body[i : i + 1], end=i + 1 == len(body)) for i in range(len(body))]),
        ("R6_empty_end", [request_body(body), request_body(b"", end=True)]),
        ("R6_every_byte_and_empty_end", [*(request_body(bytes([b])) for b in body), request_body(end=True)]),
    ]


SPLITS = [pytest.param(messages, id=name) for name, messages in splits(BODY)]


@pytest.mark.parametrize("body", SPLITS)
def test_duplex_answers_header_then_whole_body_when_body_ends(body: list[pb.ProcessingRequest]) -> None:
    driver = MachineDriver(ROUTE)

    before = driver.send(request_headers(config=DUPLEX), *body[:-1])
    header, *chunks = driver.send(body[-1])

    assert before == []
    assert kind_of(header) == "request_headers"
    assert header.request_headers.response.clear_route_cache
    assert streamed(chunks, "request_body") == [(BODY, True)]
    assert [request.body for request in driver.requests] == [BODY]
    assert driver.requests[0].has_body
    assert driver.requests[0].path == "/v1/chat/completions"
    assert driver.requests[0].request_id == "id-1"


@pytest.mark.parametrize(
    ("addresses", "value"),
    [
        pytest.param(("10.0.0.1:8000",), "10.0.0.1:8000", id="R3_one"),
        pytest.param(
            ("10.0.0.2:8000", "10.0.0.1:8000", "[::1]:80"),
            "10.0.0.2:8000,10.0.0.1:8000,[::1]:80",
            id="R4_list",
        ),
    ],
)
@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
def test_destination_is_the_same_in_header_and_metadata(
    config: pb.ProtocolConfiguration, addresses: tuple[str, ...], value: str
) -> None:
    driver = MachineDriver(make_route(*addresses))

    driver.send(request_headers(config=config), request_body(BODY, end=True))

    answer = next(reply for reply in driver.replies if reply.HasField("dynamic_metadata"))
    assert set_headers(answer) == {DESTINATION: value}  # R2: nothing else is set, nothing echoed
    assert metadata_destination(answer) == value


@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
def test_rewritten_body_goes_on_with_its_length(config: pb.ProtocolConfiguration) -> None:
    new_body = b'{"model":"target"}'
    driver = MachineDriver(make_route("10.0.0.1:8000", rewrite=ModelRewrite(new_body, "m", "target")))

    driver.send(request_headers(config=config), request_body(BODY, end=True))

    answer = next(reply for reply in driver.replies if reply.HasField("dynamic_metadata"))
    assert set_headers(answer)["content-length"] == str(len(new_body))  # R15
    if config is DUPLEX:
        assert streamed(driver.replies, "request_body") == [(new_body, True)]
    else:
        assert answer.request_body.response.body_mutation.body == new_body  # B2


@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
def test_control_headers_of_the_client_are_removed(config: pb.ProtocolConfiguration) -> None:
    driver = MachineDriver(ROUTE)
    sent = dict.fromkeys(CONTROL_HEADERS, "spoofed") | {"x-other": "stays"}

    driver.send(request_headers(*sent.items(), config=config), request_body(BODY, end=True))

    answer = next(reply for reply in driver.replies if reply.HasField("dynamic_metadata"))
    assert set(removed_headers(driver.replies[0])) - {DESTINATION} == CONTROL_HEADERS  # R22
    assert set_headers(answer) == {DESTINATION: "10.0.0.1:8000"}
    assert driver.requests[0].headers["x-llm-d-inference-objective"] == "spoofed"  # R19: read before


def test_destination_overwrites_what_the_client_sent() -> None:
    driver = MachineDriver(ROUTE)

    answer = driver.send(request_headers((DESTINATION, "6.6.6.6:1"), end=True))[0]

    option = answer.request_headers.response.header_mutation.set_headers[0]
    assert option.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert option.header.raw_value == b"10.0.0.1:8000"
    assert DESTINATION not in driver.requests[0].headers  # R22


@pytest.mark.parametrize("size", [MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 200_000, 3 * MAX_CHUNK_BYTES])
def test_duplex_gives_a_large_body_back_in_chunks(size: int) -> None:
    body = bytes(i % 251 for i in range(size))
    driver = MachineDriver(ROUTE)

    driver.send(request_headers(config=DUPLEX), request_body(body), request_body(end=True))

    assert kind_of(driver.replies[0]) == "request_headers"  # R7
    chunks = streamed(driver.replies[1:], "request_body")
    assert b"".join(chunk for chunk, _ in chunks) == body
    assert max(len(chunk) for chunk, _ in chunks) <= MAX_CHUNK_BYTES
    assert [end for _, end in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(DUPLEX, id="duplex"),
        pytest.param(BUFFERED, id="buffered"),
        pytest.param(None, id="not_told"),
    ],
)
def test_request_without_body_is_routed_on_its_headers(config: pb.ProtocolConfiguration | None) -> None:
    driver = MachineDriver(ROUTE)

    replies = driver.send(request_headers(config=config, end=True))

    assert [kind_of(reply) for reply in replies] == ["request_headers"]  # R8
    assert set_headers(replies[0]) == {DESTINATION: "10.0.0.1:8000"}
    assert metadata_destination(replies[0]) == "10.0.0.1:8000"
    assert not driver.requests[0].has_body


def test_body_without_a_byte_counts_as_no_body() -> None:
    driver = MachineDriver(ROUTE)

    driver.send(request_headers(config=DUPLEX), request_body(end=True))

    assert not driver.requests[0].has_body
    assert streamed(driver.replies[1:], "request_body") == [(b"", True)]


@pytest.mark.parametrize(
    ("headers", "seen"),
    [
        pytest.param([pb.HeaderValue(key="X-Key", raw_value=b"v")], "v", id="R20_mixed_case"),
        pytest.param([pb.HeaderValue(key="x-key", value="v")], "v", id="R20_value_alone"),
        pytest.param(
            [pb.HeaderValue(key="x-key", value="old", raw_value=b"v")], "v", id="R20_raw_value_wins"
        ),
        pytest.param([pb.HeaderValue(key="x-key", raw_value=b"\xff")], "�", id="not_utf8"),
        pytest.param(
            [pb.HeaderValue(key="x-key", raw_value=b"a"), pb.HeaderValue(key="x-key", raw_value=b"b")],
            "b",
            id="repeated",
        ),
    ],
)
def test_header_reaches_the_router(headers: list[pb.HeaderValue], seen: str) -> None:
    driver = MachineDriver(ROUTE)
    message = pb.HttpHeaders(headers=pb.HeaderMap(headers=headers), end_of_stream=True)

    driver.send(pb.ProcessingRequest(request_headers=message))

    assert driver.requests[0].headers["x-key"] == seen


@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
def test_missing_request_id_is_generated_and_sent_upstream(config: pb.ProtocolConfiguration) -> None:
    driver = MachineDriver(ROUTE, request_id="id-7")
    headers = pb.HttpHeaders(headers=pb.HeaderMap(headers=[pb.HeaderValue(key=":path", raw_value=b"/")]))

    driver.send(
        pb.ProcessingRequest(request_headers=headers, protocol_config=config), request_body(BODY, end=True)
    )

    answer = next(reply for reply in driver.replies if reply.HasField("dynamic_metadata"))
    assert set_headers(answer)["x-request-id"] == "id-7"  # R21
    assert driver.requests[0].request_id == "id-7"
    assert driver.close().request_id == "id-7"


@pytest.mark.parametrize(
    ("body", "chunks"),
    [
        pytest.param([request_body(BODY)], [(BODY, False)], id="R23_body"),
        pytest.param([], [], id="R23_no_body"),
        pytest.param([request_body()], [], id="R23_empty_body"),
    ],
)
def test_duplex_answers_header_body_trailers_when_trailers_end_the_request(
    body: list[pb.ProcessingRequest], chunks: list[tuple[bytes, bool]]
) -> None:
    driver = MachineDriver(ROUTE)

    assert driver.send(request_headers(config=DUPLEX), *body) == []
    replies = driver.send(request_trailers())

    assert kind_of(replies[0]) == "request_headers"
    assert streamed(replies, "request_body") == chunks
    assert kind_of(replies[-1]) == "request_trailers"


@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
def test_body_over_the_limit_is_refused_unrouted(config: pb.ProtocolConfiguration) -> None:
    driver = MachineDriver(ROUTE, max_body_bytes=10)

    driver.send(request_headers(config=config), request_body(b"x" * 11))

    answer = driver.replies[-1].immediate_response
    assert answer.status.code == 413  # R24
    assert answer.body == (
        b"inference error: PayloadTooLarge - request body is larger than 10 bytes, the limit of this endpoint picker"
    )
    assert driver.ended
    assert driver.requests == []


def test_body_at_the_limit_is_routed() -> None:
    driver = MachineDriver(ROUTE, max_body_bytes=10)

    driver.send(request_headers(config=DUPLEX), request_body(b"x" * 9), request_body(b"x", end=True))

    assert driver.requests[0].body == b"x" * 10


def test_buffered_answers_headers_at_once_and_routes_on_the_body() -> None:
    driver = MachineDriver(ROUTE)

    first = driver.send(request_headers(config=BUFFERED))
    second = driver.send(request_body(BODY, end=True))

    assert [kind_of(reply) for reply in first] == ["request_headers"]  # B1
    assert (removed_headers(first[0]), set_headers(first[0])) == ([DESTINATION], {})
    assert [kind_of(reply) for reply in second] == ["request_body"]
    assert second[0].request_body.response.clear_route_cache
    assert not second[0].request_body.response.HasField("body_mutation")  # content-length stays right
    assert driver.requests[0].body == BODY


def test_buffered_answers_trailers_after_the_body_unchanged() -> None:
    driver = MachineDriver(ROUTE)
    driver.send(request_headers(config=BUFFERED), request_body(BODY))

    assert driver.send(request_trailers()) == [pb.ProcessingResponse(request_trailers=pb.TrailersResponse())]


def test_buffered_routes_by_metadata_when_trailers_come_without_a_body() -> None:
    driver = MachineDriver(ROUTE)
    spoofed = ((DESTINATION, "6.6.6.6:1"), ("x-prefiller-host-port", "6.6.6.6:1"))
    (first,) = driver.send(request_headers(*spoofed, config=BUFFERED))

    (answer,) = driver.send(request_trailers())

    assert removed_headers(first) == [name for name, _ in spoofed]  # trailers can remove no header
    assert kind_of(answer) == "request_trailers"
    assert metadata_destination(answer) == "10.0.0.1:8000"


@pytest.mark.parametrize("mode", ["NONE", "STREAMED", "BUFFERED_PARTIAL", "GRPC"])
def test_modes_without_a_usable_body_are_routed_on_headers(mode: str) -> None:
    driver = MachineDriver(ROUTE)
    config = pb.ProtocolConfiguration(request_body_mode=pb.ProcessingMode.BodySendMode.Value(mode))

    (header,) = driver.send(request_headers(config=config))
    rest = driver.send(request_body(BODY), request_body(BODY, end=True), request_trailers())

    assert set_headers(header) == {DESTINATION: "10.0.0.1:8000"}
    assert not driver.requests[0].has_body
    assert rest == [
        pb.ProcessingResponse(request_body=pb.BodyResponse()),
        pb.ProcessingResponse(request_body=pb.BodyResponse()),
        pb.ProcessingResponse(request_trailers=pb.TrailersResponse()),
    ]


def test_stream_without_protocol_config_is_served_as_duplex() -> None:
    driver = MachineDriver(ROUTE)

    assert driver.send(request_headers()) == []
    driver.send(request_body(BODY, end=True))

    assert streamed(driver.replies, "request_body") == [(BODY, True)]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param(RefusalCode.BAD_REQUEST, 400, id="R10_bad_request"),
        pytest.param(RefusalCode.PAYLOAD_TOO_LARGE, 413, id="too_large"),
        pytest.param(RefusalCode.RESOURCE_EXHAUSTED, 429, id="E1_exhausted"),
        pytest.param(RefusalCode.INTERNAL, 500, id="E6_internal"),
        pytest.param(RefusalCode.SERVICE_UNAVAILABLE, 503, id="S3_unavailable"),
    ],
)
@pytest.mark.parametrize("config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")])
def test_refusal_is_answered_in_place_of_the_engine_and_ends_the_stream(
    config: pb.ProtocolConfiguration, code: RefusalCode, status: int
) -> None:
    driver = MachineDriver(Refusal(code, "no such thing"))

    driver.send(request_headers(config=config), request_body(BODY, end=True))

    answer = driver.replies[-1].immediate_response
    assert answer.status.code == status
    assert answer.body.decode() == f"inference error: {code.value} - no such thing"
    assert not answer.HasField("headers")
    assert driver.ended  # E7
    assert driver.close().outcome is Outcome.REFUSED


def test_get_is_refused_with_503_when_there_is_no_endpoint() -> None:
    driver = MachineDriver(
        Refusal(RefusalCode.SERVICE_UNAVAILABLE, "no endpoint", dropped_reason="rejected-no-endpoints")
    )

    (answer,) = driver.send(request_headers(end=True))

    assert answer.immediate_response.status.code == 503  # R9
    (option,) = answer.immediate_response.headers.set_headers
    assert option.header.key == "x-llm-d-request-dropped-reason"
    assert option.header.raw_value == b"rejected-no-endpoints"


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        pytest.param([request_body(BODY)], "request_body came before request_headers", id="body_first"),
        pytest.param(
            [request_trailers()], "request_trailers came before request_headers", id="trailers_first"
        ),
        pytest.param(
            [request_headers(), request_headers()], "request_headers came twice", id="headers_twice"
        ),
        pytest.param(
            [request_headers(end=True), request_body(BODY)], "request_body came after", id="body_after_end"
        ),
        pytest.param(
            [request_headers(), request_body(end=True), request_trailers()],
            "request_trailers came after",
            id="trailers_after_end",
        ),
        pytest.param(
            [request_headers(config=BUFFERED), request_body(BODY), request_body(BODY)],
            "request_body came after",
            id="second_buffered_body",
        ),
        pytest.param([pb.ProcessingRequest()], "without headers, body or trailers", id="empty"),
    ],
)
def test_message_out_of_order_is_an_error(messages: list[pb.ProcessingRequest], text: str) -> None:
    driver = MachineDriver(ROUTE)
    driver.send(*messages[:-1])

    with pytest.raises(ExtProcError, match=text) as raised:
        driver.send(messages[-1])

    assert raised.value.reason == "out_of_order"


def test_response_is_answered_while_the_request_is_still_collected() -> None:
    driver = MachineDriver(ROUTE)
    driver.send(request_headers(config=DUPLEX), request_body(BODY))

    (answer,) = driver.send(response_headers())  # Envoy itself answered the client

    assert kind_of(answer) == "response_headers"
