"""Settings of streams that flags of the reference set: scores, subsets, sizes; and headers that a route adds."""

from __future__ import annotations

import pytest
from google.protobuf.json_format import MessageToDict
from msgspec.structs import replace

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.routing.router import ModelRewrite
from support.decisions import decided
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    MachineDriver,
    kind_of,
    make_route,
    request_body,
    request_headers,
    request_trailers,
    set_headers,
    subset_hint,
)

BODY = b'{"model":"m"}'
ROUTE = replace(make_route("a:1"), decision=decided([(1.0,), (0.25,)], [2.0]))
REWRITE = ModelRewrite(b'{"model":"n"}', "m", "n")


def scores(response: pb.ProcessingResponse) -> object:
    """Return the scores in a reply's metadata, None if there are none."""
    metadata = MessageToDict(response.dynamic_metadata)["envoy.lb"]
    return metadata.get("x-gateway-destination-endpoint-scores")


@pytest.mark.parametrize(
    ("mode", "last"),
    [
        pytest.param(DUPLEX, request_body(BODY, end=True), id="headers"),
        pytest.param(BUFFERED, request_body(BODY, end=True), id="body"),
        pytest.param(BUFFERED, request_trailers(), id="trailers"),
    ],
)
def test_scores_go_beside_the_destination_when_they_are_emitted(
    mode: pb.ProtocolConfiguration, last: pb.ProcessingRequest
) -> None:
    for emits, expected in (
        (True, dict(zip(ROUTE.decision.kept_addresses, (2.0, 0.5), strict=True))),
        (False, None),
    ):
        driver = MachineDriver(ROUTE, emit_scores=emits)
        replies = driver.send(request_headers(config=mode), last)
        reply = next(reply for reply in replies if reply.HasField("dynamic_metadata"))
        assert scores(reply) == expected


def test_scores_go_with_a_rewritten_body() -> None:
    driver = MachineDriver(replace(ROUTE, rewrite=REWRITE), emit_scores=True)
    (_, reply) = driver.send(request_headers(config=BUFFERED), request_body(BODY, end=True))
    assert reply.request_body.response.body_mutation.body == REWRITE.body
    assert scores(reply) is not None


def test_subset_is_ignored_when_it_is_not_used() -> None:
    driver = MachineDriver(ROUTE, use_subset=False)
    driver.send(request_headers(config=DUPLEX, metadata=subset_hint(["b:1"])), request_body(BODY, end=True))
    assert driver.requests[0].subset is None


def test_time_of_the_headers_goes_with_the_request() -> None:
    driver = MachineDriver(ROUTE)
    driver.now = 5.0
    driver.send(request_headers(config=DUPLEX))
    driver.now = 7.0
    driver.send(request_body(BODY, end=True))
    assert driver.requests[0].arrived_at == 5.0


def test_headers_of_a_route_are_set_on_the_request() -> None:
    driver = MachineDriver(replace(ROUTE, request_headers={"traceparent": "t"}))
    reply, _ = driver.send(request_headers(config=DUPLEX), request_body(BODY, end=True))
    assert set_headers(reply) == {"x-gateway-destination-endpoint": "a:1", "traceparent": "t"}


@pytest.mark.parametrize(("mode", "kind"), [(BUFFERED, "immediate_response"), (DUPLEX, "request_headers")])
def test_rewritten_body_too_long_for_one_message_is_refused(
    mode: pb.ProtocolConfiguration, kind: str
) -> None:
    route = replace(ROUTE, rewrite=ModelRewrite(b"x" * 70_000, "m", "n"))
    driver = MachineDriver(route, max_sent_bytes=65_536)
    replies = driver.send(request_headers(config=mode), request_body(BODY, end=True))
    answer = replies[-1] if mode is BUFFERED else replies[0]
    assert kind_of(answer) == kind
    if mode is BUFFERED:
        assert answer.immediate_response.status.code == 413
        assert b"65536 bytes" in answer.immediate_response.body
        assert driver.completions[0].route is not None  # what was booked for it is given back
