"""Ids of responses of the responses API, which later requests name."""

from __future__ import annotations

import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.routing.outcome import ResponseNamed
from support.ext_proc import (
    DUPLEX,
    MachineDriver,
    header_map,
    make_route,
    request_body,
    response_body,
    response_headers,
)

ID = "resp_" + "0a" * 16
JSON = b'{"id": "%s", "output": [{"id": "msg_1"}]}' % ID.encode()
SSE = b'event: response.created\ndata: {"response":{"id":"%s"},"sequence_number":0}\n\n' % ID.encode()
TOKEN = b'event: response.output_text.delta\ndata: {"delta": "a"}\n\n'
NAMED = [ResponseNamed(ID, "10.0.0.1:8000")]


def driver_of(path: str = "/v1/responses") -> MachineDriver:
    """Return a stream whose request was routed."""
    driver = MachineDriver(make_route("10.0.0.1:8000", "10.0.0.2:8000"))
    headers = header_map([(":path", path), ("x-request-id", "id")])
    first = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers), protocol_config=DUPLEX)
    driver.send(first, request_body(b"{}", end=True))
    return driver


@pytest.mark.parametrize("n_bytes", [1, 7, 1000])
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        pytest.param("application/json", JSON, id="json"),
        pytest.param("application/json", b'{"created_at":1,"error":null,' + JSON[1:], id="id_not_first"),
        pytest.param("text/event-stream", SSE + TOKEN, id="events"),
    ],
)
def test_response_is_named_once_however_it_is_cut(kind: str, body: bytes, n_bytes: int) -> None:
    driver = driver_of()
    driver.send(response_headers(("content-type", kind)))
    for start in range(0, len(body), n_bytes):
        driver.send(response_body(body[start : start + n_bytes]))
    driver.send(response_body(end=True))

    assert driver.named == NAMED


def test_stream_is_named_before_its_first_token() -> None:
    driver = driver_of()
    driver.send(response_headers(("content-type", "text/event-stream")), response_body(SSE))

    assert (driver.named, driver.begun) == (NAMED, [])


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        pytest.param("/v1/chat/completions", [], JSON, id="other_api"),
        pytest.param("/v1/responses", [("content-encoding", "gzip")], JSON, id="compressed"),
        pytest.param("/v1/responses", [(":status", "404")], JSON, id="refused"),
        pytest.param("/v1/responses", [], b'{"id": "chatcmpl-1"}', id="other_id"),
        pytest.param("/v1/responses", [], b" " * 4096 + JSON, id="id_too_late"),
    ],
)
def test_other_responses_are_not_named(path: str, headers: list[tuple[str, str]], body: bytes) -> None:
    driver = driver_of(path)
    driver.send(response_headers(("content-type", "application/json"), *headers))
    driver.send(response_body(body), response_body(end=True))

    assert driver.named == []


@pytest.mark.parametrize(
    ("kind", "beginning", "rest"),
    [
        pytest.param("application/json", JSON[:3], JSON[3:], id="json"),
        pytest.param("application/json", b"", b" " * 4096, id="no_id"),
        pytest.param("text/event-stream", SSE, TOKEN, id="events"),
        pytest.param("text/event-stream", SSE[:24], TOKEN, id="events_without_id"),
    ],
)
def test_rest_may_pass_once_the_id_was_read(kind: str, beginning: bytes, rest: bytes) -> None:
    pytest.importorskip("kvatlas.api.http2._native", reason="built without a compiler")
    driver = driver_of()
    driver.send(response_headers(("content-type", kind)), response_body(beginning))
    assert driver.machine.passage() is None

    driver.send(response_body(rest))
    assert driver.machine.passage() is not None
