"""Requests that open a WebSocket: their client sends nothing more before the server has accepted."""

from __future__ import annotations

from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    kind_of,
    make_route,
    metadata_destination,
    request_body,
    request_headers,
    streamed,
)

OPENING = (":method", "GET"), ("upgrade", "WebSocket"), ("connection", "Upgrade")


def test_websocket_is_routed_on_its_headers_and_the_rest_passes() -> None:
    driver = MachineDriver(make_route("10.0.0.1:8000"))
    opened = driver.send(request_headers(*OPENING, config=DUPLEX))
    passed = driver.send(request_body(b"\x81\x01a"), request_body(end=True))

    assert [kind_of(reply) for reply in opened] == ["request_headers"]
    assert metadata_destination(opened[0]) == "10.0.0.1:8000"
    assert streamed(passed, "request_body") == [(b"\x81\x01a", False), (b"", True)]
    assert not driver.requests[0].has_body


def test_websocket_is_not_booked_where_the_gateway_waits_for_its_end() -> None:
    driver = MachineDriver(make_route("10.0.0.1:8000"))
    (opened,) = driver.send(request_headers(*OPENING, config=BUFFERED))

    assert (metadata_destination(opened), driver.requests) == ("", [])
