"""What is said of a request at its end: numbers for the gateway, on every way a response can come."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec
import pytest
from google.protobuf.json_format import MessageToDict

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.replies import MAX_AT_ONCE_BYTES
from kvatlas.routing.router import LocalResponse, ModelRewrite, Refusal, RefusalCode, Route
from kvatlas.scorers.builtin import builtin_registry
from support.built import built
from support.ext_proc import (
    MachineDriver,
    header_map,
    make_route,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
)
from support.protobuf import content, frame, number

STREAMED = pb.ProcessingMode.STREAMED
DUPLEX = pb.ProcessingMode.FULL_DUPLEX_STREAMED
USAGE = {"prompt_tokens": 11, "completion_tokens": 7}
JSON = ("content-type", "application/json")
EVENTS = ("content-type", "text/event-stream")
GRPC = ("content-type", "application/grpc")
COST = {"envoy.lb": {"cost": 18.0}}


def reporting(expression: str, rewrite: ModelRewrite | None = None) -> Route:
    entry = {"key": {"name": "cost"}, "expression": expression}
    plugin = built(builtin_registry().reporters, "request-attribute-reporter", {"attributes": [entry]})
    return msgspec.structs.replace(make_route("10.0.0.1:8000", rewrite=rewrite), reporters=(plugin,))


TOTAL = reporting("usage.total_tokens")


def said(replies: list[pb.ProcessingResponse]) -> list[Mapping[str, object] | None]:
    return [
        MessageToDict(each.dynamic_metadata) if each.HasField("dynamic_metadata") else None
        for each in replies
    ]


def started(route: Route, mode: pb.ProcessingMode.BodySendMode.ValueType = DUPLEX) -> MachineDriver:
    driver = MachineDriver(route)
    config = pb.ProtocolConfiguration(request_body_mode=DUPLEX, response_body_mode=mode)
    driver.send(request_headers(config=config), request_body(b"{}", end=True))
    return driver


@pytest.mark.parametrize("mode", [DUPLEX, STREAMED])
def test_number_comes_with_the_last_message_of_the_body(
    mode: pb.ProcessingMode.BodySendMode.ValueType,
) -> None:
    driver = started(TOTAL, mode)
    events = f"data: {json.dumps({'usage': USAGE})}\n\n".encode()
    replies = driver.send(
        response_headers(EVENTS), response_body(events), response_body(b"data: [DONE]\n\n", end=True)
    )
    assert said(replies) == [None, None, COST]


def test_number_comes_with_the_trailers_of_a_grpc_response() -> None:
    message = frame(content(2, number(3, 11) + number(4, 7)))
    replies = started(TOTAL).send(response_headers(GRPC), response_body(message), response_trailers())
    assert said(replies) == [None, None, COST]


def test_number_comes_with_the_last_piece_of_a_long_body() -> None:
    body = json.dumps({"usage": USAGE, "text": "a" * MAX_AT_ONCE_BYTES}).encode()
    route = reporting("5")
    replies = started(route).send(response_headers(JSON), response_body(body, end=True))
    assert said(replies)[-1] == {"envoy.lb": {"cost": 5.0}}
    assert said(replies)[:-1] == [None] * (len(replies) - 1)
    assert len(replies) > 10


def test_response_without_usage_reports_nothing() -> None:
    replies = started(TOTAL).send(response_headers(JSON), response_body(b"{}", end=True))
    assert said(replies) == [None, None]


def test_usage_is_read_once_though_it_is_reported_and_recorded() -> None:
    driver = started(TOTAL)
    driver.send(response_headers(JSON), response_body(json.dumps({"usage": USAGE}).encode(), end=True))
    (completion,) = driver.completions
    assert getattr(completion.response.usage, "output_tokens", None) == 7


def test_first_token_of_a_grpc_stream_is_reported() -> None:
    driver = started(TOTAL)
    chunk = frame(content(1, number(2, 11) + number(3, 1)))
    driver.send(response_headers(GRPC), response_body(chunk))
    assert [each.is_first_token for each in driver.begun] == [True]


@pytest.mark.parametrize(("kind", "status"), [(GRPC, 3), (JSON, 0)])
def test_refusal_has_a_grpc_status_if_the_client_speaks_grpc(kind: tuple[str, str], status: int) -> None:
    driver = MachineDriver(Refusal(RefusalCode.BAD_REQUEST, "no"))
    driver.send(request_headers(kind), request_body(b"x", end=True))
    (reply,) = driver.replies
    assert reply.immediate_response.status.code == 400
    assert reply.immediate_response.grpc_status.status == status


def test_response_of_the_picker_ends_the_stream() -> None:
    driver = MachineDriver(LocalResponse(b'{"object":"list","data":[]}'))
    driver.send(request_headers((":method", "GET"), end=True))
    (reply,) = driver.replies
    response = reply.immediate_response
    assert (response.status.code, response.body) == (200, b'{"object":"list","data":[]}')
    assert [each.header.key for each in response.headers.set_headers] == ["content-type"]
    assert driver.ended
    assert [each.outcome.value for each in driver.completions] == ["answered"]


@pytest.mark.parametrize(
    ("headers", "trailers", "status"),
    [
        pytest.param((GRPC,), (("grpc-status", "0"),), 200, id="good"),
        pytest.param((GRPC,), (("grpc-status", "8"),), 429, id="exhausted"),
        pytest.param((GRPC,), (("grpc-status", "13"),), 500, id="internal"),
        pytest.param((GRPC,), (("grpc-status", "x"),), 500, id="no_number"),
        pytest.param((GRPC,), (("grpc-status", "1" * 5000),), 500, id="number_without_end"),
        pytest.param((GRPC,), (), 200, id="none"),
        pytest.param((GRPC, ("grpc-status", "3")), None, 400, id="in_the_headers"),
        pytest.param((JSON,), (("grpc-status", "13"),), 200, id="not_grpc"),
    ],
)
def test_status_of_a_grpc_response_is_that_of_its_end(
    headers: tuple[tuple[str, str], ...], trailers: tuple[tuple[str, str], ...] | None, status: int
) -> None:
    driver = started(TOTAL)
    driver.send(response_headers(*headers, end=trailers is None))
    if trailers is not None:
        driver.send(pb.ProcessingRequest(response_trailers=pb.HttpTrailers(trailers=header_map(trailers))))
    (completion,) = driver.completions
    assert (completion.response.status, completion.was_computed) == (status, status == 200)
