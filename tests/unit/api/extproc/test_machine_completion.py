"""What is told of a finished request: once, with the engine's own count of tokens."""

from __future__ import annotations

import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.routing.outcome import Outcome, Response, Usage, UsageGap
from kvatlas.routing.router import ModelRewrite, Refusal, RefusalCode
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    make_route,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
    streamed,
)

ROUTE = make_route("10.0.0.1:8000", "10.0.0.2:8000")
REQUEST = (request_headers(config=DUPLEX), request_body(b"{}", end=True))
USAGE = b'"usage":{"prompt_tokens":11,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":8}}'
JSON = b'{"model":"lora",' + USAGE + b"}"
SSE = b'data: {"model":"lora","choices":[{}]}\n\ndata: {"model":"lora",' + USAGE + b"}\n\ndata: [DONE]\n\n"
TOLD = Usage(prompt_tokens=11, cached_tokens=8, output_tokens=7)
JSON_HEADERS = response_headers(("content-type", "application/json"))
SSE_HEADERS = response_headers(("content-type", "text/event-stream"))


@pytest.mark.parametrize(
    ("headers", "body", "n_events"),
    [pytest.param(JSON_HEADERS, JSON, 0, id="P5_json"), pytest.param(SSE_HEADERS, SSE, 2, id="P6_events")],
)
@pytest.mark.parametrize("mode", ["FULL_DUPLEX_STREAMED", "STREAMED", "BUFFERED"])
def test_usage_and_times_are_told_at_the_end_of_the_response(
    headers: pb.ProcessingRequest, body: bytes, n_events: int, mode: str
) -> None:
    driver = MachineDriver(ROUTE)
    config = pb.ProtocolConfiguration(
        request_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED,
        response_body_mode=pb.ProcessingMode.BodySendMode.Value(mode),
    )

    driver.now = 1.0
    driver.send(request_headers(config=config))
    driver.now = 3.0
    driver.send(request_body(b"{}", end=True))
    driver.now = 5.0
    driver.send(headers, response_body())
    driver.now = 6.0
    driver.send(response_body(body[:20]))
    driver.now = 9.0
    driver.send(response_body(body[20:]))
    assert driver.completions == []
    driver.send(response_body(end=True))

    (completion,) = driver.completions  # before the stream is closed
    assert completion.outcome is Outcome.COMPLETED
    shows_tokens = bool(n_events) and mode != "BUFFERED"
    assert completion.response == Response(
        200, TOLD, n_events, time_to_first_byte_s=3.0, time_to_end_s=6.0, shows_tokens=shows_tokens
    )
    assert driver.close() is completion


def test_usage_is_told_when_trailers_end_the_response() -> None:
    driver = MachineDriver(ROUTE)

    driver.send(*REQUEST, JSON_HEADERS, response_body(JSON), response_trailers())

    assert driver.completions[0].response.usage == TOLD  # P10


def test_usage_seen_before_the_client_went_away_is_told() -> None:
    driver = MachineDriver(ROUTE)

    driver.send(*REQUEST, SSE_HEADERS, response_body(SSE))

    completion = driver.close()
    assert (completion.outcome, completion.response.usage) == (Outcome.ABORTED, TOLD)


@pytest.mark.parametrize(
    ("driver", "request_messages", "headers"),
    [
        pytest.param(MachineDriver(ROUTE, read_usage=False), REQUEST, JSON_HEADERS, id="switched_off"),
        pytest.param(
            MachineDriver(ROUTE), REQUEST, response_headers(("content-type", "application/json"), status="404"),
            id="P13_error",
        ),
        pytest.param(
            MachineDriver(ROUTE), [request_headers(config=DUPLEX, end=True)], JSON_HEADERS, id="request_without_body"
        ),
        pytest.param(MachineDriver(ROUTE), [], JSON_HEADERS, id="P11_request_not_seen"),
    ],
)  # fmt: skip
def test_nobody_looks_for_usage_where_none_is_to_be_had(
    driver: MachineDriver, request_messages: list[pb.ProcessingRequest], headers: pb.ProcessingRequest
) -> None:
    driver.send(*request_messages, headers, response_body(JSON, end=True))

    assert driver.close().response.usage is None


def test_compressed_response_is_passed_unread() -> None:
    driver = MachineDriver(make_route("10.0.0.1:8000", rewrite=ModelRewrite(b"{}", "m", "lora")))
    headers = response_headers(("content-type", "application/json"), ("content-encoding", "gzip"))

    replies = driver.send(*REQUEST, headers, response_body(JSON, end=True))

    assert streamed(replies, "response_body") == [(JSON, True)]
    assert driver.close().response.usage is UsageGap.ENCODED


@pytest.mark.parametrize("status", ["503", "200"])
def test_status_is_told(status: str) -> None:
    driver = MachineDriver(ROUTE)

    driver.send(*REQUEST, response_headers(status=status, end=True))

    assert driver.close().response.status == int(status)  # P13


@pytest.mark.parametrize("status", ["", "2", "ok", "9" * 5000, "٢٠٠"])
def test_status_that_is_none_is_not_told(status: str) -> None:
    driver = MachineDriver(ROUTE)

    driver.send(*REQUEST, response_headers(status=status, end=True))

    assert driver.close().response.status is None


@pytest.mark.parametrize(
    "headers", [pytest.param(JSON_HEADERS, id="json"), pytest.param(SSE_HEADERS, id="events")]
)
@pytest.mark.parametrize("end_with_trailers", [True, False])
def test_response_names_the_model_as_the_client_did(
    headers: pb.ProcessingRequest, end_with_trailers: bool
) -> None:
    body = JSON if headers is JSON_HEADERS else SSE
    driver = MachineDriver(make_route("10.0.0.1:8000", rewrite=ModelRewrite(b"{}", "base", "lora")))
    driver.send(*REQUEST, headers)

    for byte in body:
        driver.send(response_body(bytes([byte])))
    driver.send(response_trailers() if end_with_trailers else response_body(end=True))

    chunks = streamed(driver.replies, "response_body")
    assert b"".join(chunk for chunk, _ in chunks) == body.replace(b"lora", b"base")  # P9
    assert [end for _, end in chunks].count(True) == (not end_with_trailers)
    assert driver.close().response.usage == TOLD


def test_response_to_a_request_that_named_no_model_stays() -> None:
    driver = MachineDriver(make_route("10.0.0.1:8000", rewrite=ModelRewrite(b"{}", "", "lora")))

    replies = driver.send(*REQUEST, JSON_HEADERS, response_body(JSON, end=True))

    assert streamed(replies, "response_body") == [(JSON, True)]


def test_refusal_is_told_at_once_and_not_again_when_the_stream_closes() -> None:
    driver = MachineDriver(Refusal(RefusalCode.BAD_REQUEST, "bad"))

    driver.send(*REQUEST)

    assert [completion.outcome for completion in driver.completions] == [Outcome.REFUSED]
    assert driver.close().route is None


def test_response_that_ended_before_any_decision_is_told_when_the_stream_closes() -> None:
    driver = MachineDriver(ROUTE)
    driver.send(
        request_headers(config=DUPLEX), response_headers(end=True)
    )  # Envoy itself answered the client
    assert driver.completions == []

    driver.send(request_body(b"{}", end=True))

    completion = driver.close()
    assert (completion.outcome, completion.route) == (Outcome.COMPLETED, ROUTE)


@pytest.mark.parametrize(
    ("served", "endpoint"),
    [
        pytest.param("10.0.0.2:8000", "10.0.0.2:8000", id="told"),
        pytest.param("", "10.0.0.1:8000", id="picked"),
    ],
)
def test_endpoint_is_who_served_else_who_was_picked(served: str, endpoint: str) -> None:
    driver = MachineDriver(ROUTE)
    headers = response_headers(end=True)
    metadata = headers.metadata_context.filter_metadata["envoy.lb"]
    metadata["x-gateway-destination-endpoint-served"] = served

    driver.send(*REQUEST, headers)

    assert driver.close().endpoint == endpoint  # P12


def test_no_endpoint_is_told_when_nothing_was_routed() -> None:
    driver = MachineDriver(ROUTE)
    driver.send(request_headers(config=BUFFERED))

    assert driver.close().endpoint is None
