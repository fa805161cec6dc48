"""gRPC calls whose client sends further messages only after the first response, such as those of reflection."""

from __future__ import annotations

import pytest

from support.ext_proc import (
    DUPLEX,
    MachineDriver,
    kind_of,
    make_route,
    request_body,
    request_headers,
    request_trailers,
    streamed,
)
from support.protobuf import frame

FIRST, SECOND = frame(b"first"), frame(b"second")
HEADERS = request_headers(("content-type", "application/grpc"), config=DUPLEX)


@pytest.mark.parametrize("n_bytes", [1, 4, 5, 9, 10])
def test_call_is_routed_once_its_first_message_is_whole(n_bytes: int) -> None:
    driver = MachineDriver(make_route("10.0.0.1:8000"))
    assert driver.send(HEADERS, request_body(FIRST[:n_bytes])) == [] or n_bytes == len(FIRST)
    driver.send(request_body(FIRST[n_bytes:]))

    (request,) = driver.requests
    assert request.body == FIRST
    assert [kind_of(reply) for reply in driver.replies[:2]] == ["request_headers", "request_body"]
    driver.send(request_body(SECOND), request_body(end=True))
    pieces = streamed(driver.replies[1:], "request_body")
    assert b"".join(body for body, _ in pieces) == FIRST + SECOND
    assert [end for _, end in pieces][-2:] == [False, True]


def test_first_message_may_come_with_more_and_trailers_may_end_the_call() -> None:
    driver = MachineDriver(make_route("10.0.0.1:8000"))
    replies = driver.send(HEADERS, request_body(FIRST + SECOND[:3]))
    assert [kind_of(reply) for reply in replies] == ["request_headers", "request_body"]

    driver.send(request_body(SECOND[3:]), request_trailers())
    assert streamed(driver.replies[1:3], "request_body") == [(FIRST + SECOND[:3], False), (SECOND[3:], False)]
    assert kind_of(driver.replies[3]) == "request_trailers"
