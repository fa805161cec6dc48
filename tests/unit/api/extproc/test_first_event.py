"""The first event of a stream: comments that keep the connection alive come before it, and it may be an error."""

from __future__ import annotations

import pytest

from kvatlas.routing.outcome import Outcome
from support.ext_proc import (
    DUPLEX,
    MachineDriver,
    make_route,
    request_body,
    request_headers,
    response_body,
    response_headers,
)

ALIVE = b": keep-alive\n\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def driver_of(*headers: tuple[str, str]) -> MachineDriver:
    """Return a stream with a streamed response that has begun."""
    driver = MachineDriver(make_route("10.0.0.1:8000"))
    driver.send(request_headers(config=DUPLEX), request_body(b"{}", end=True))
    driver.send(response_headers(("content-type", "text/event-stream"), *headers))
    return driver


@pytest.mark.parametrize("n_bytes", [1, 5, 1000])
def test_comments_are_no_first_token(n_bytes: int) -> None:
    driver = driver_of()
    for driver.now in (1.0, 2.0):
        for start in range(0, len(ALIVE), n_bytes):
            driver.send(response_body(ALIVE[start : start + n_bytes]))
    assert driver.begun == []

    driver.now = 9.0
    driver.send(response_body(TOKEN))
    assert [each.is_first_token for each in driver.begun] == [True]
    driver.send(response_body(TOKEN + DONE, end=True))
    (completion,) = driver.completions
    assert completion.response.time_to_first_byte_s == 9.0
    assert completion.response.n_events == 2


def test_client_that_leaves_before_the_first_token_has_seen_nothing() -> None:
    driver = driver_of()
    driver.send(response_body(ALIVE))

    completion = driver.close()
    assert (completion.outcome, completion.was_computed) == (Outcome.ABORTED, False)


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(b'data: {"error": {"message": "too long", "code": 400}}\n\n', id="openai"),
        pytest.param(b'data:{"error":{"message":"too long"}}\r\n\r\n', id="without_spaces"),
        pytest.param(b'event: error\ndata: {"type": "error"}\n\n', id="anthropic"),
    ],
)
def test_stream_that_begins_with_an_error_is_a_refusal(event: bytes) -> None:
    driver = driver_of()
    driver.send(response_body(event), response_body(DONE, end=True))

    assert not any(each.is_first_token for each in driver.begun)
    (completion,) = driver.completions
    assert completion.response.status == 500
    assert not completion.was_computed


def test_error_after_the_first_token_is_none() -> None:
    driver = driver_of()
    driver.send(response_body(TOKEN), response_body(b'data: {"error": {}}\n\n', end=True))

    assert [each.is_first_token for each in driver.begun] == [True]
    assert driver.completions[0].response.status == 200


def test_rest_may_pass_once_the_first_event_has_come() -> None:
    pytest.importorskip("kvatlas.api.http2._native", reason="built without a compiler")
    driver = driver_of()
    driver.send(response_body(ALIVE))
    assert driver.machine.passage() is None

    driver.send(response_body(TOKEN))
    assert driver.machine.passage() is not None


def test_compressed_stream_begins_with_its_first_byte() -> None:
    driver = driver_of(("content-encoding", "gzip"))
    driver.send(response_body(b"\x1f\x8b"))

    assert len(driver.begun) == 1
