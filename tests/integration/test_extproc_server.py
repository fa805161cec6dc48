"""The ext-proc server over real gRPC: what a gateway sends, and what it receives."""

from __future__ import annotations

import logging
from uuid import UUID

import grpc
import grpc.aio
import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.routing.outcome import Outcome
from kvatlas.routing.router import Refusal, RefusalCode, Router, RoutingRequest, RoutingResult
from kvatlas.tokenization.eventual import Eventual
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    FixedRouter,
    header_map,
    kind_of,
    metadata_destination,
    removed_headers,
    request_body,
    request_headers,
    response_body,
    response_headers,
    set_headers,
    streamed,
)
from support.ext_proc_server import BODY, ROUTE, receive, send, serving

pytestmark = pytest.mark.usefixtures("each_transport")


async def test_duplex_request_and_response_pass_through_one_stream() -> None:
    router = FixedRouter(ROUTE)
    async with serving(router) as picker:
        call = picker.open()
        await send(call, request_headers(config=DUPLEX), request_body(BODY), request_body(end=True))
        header, body = await receive(call, 2)
        await send(call, response_headers(), response_body(b"data"), response_body(end=True))
        answer = await receive(call, 3)
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        assert metadata_destination(header) == "10.0.0.1:8000"
        assert streamed([body], "request_body") == [(BODY, True)]
        assert streamed(answer, "response_body") == [(b"data", False), (b"", True)]
        assert router.requests[0].body == BODY
        assert (await picker.completions.get()).outcome is Outcome.COMPLETED
        assert picker.errors == []


async def test_buffered_request_is_answered_twice() -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        call = picker.open()
        await send(call, request_headers(config=BUFFERED))
        (first,) = await receive(call, 1)
        await send(call, request_body(BODY, end=True))
        (routed,) = await receive(call, 1)
        await call.done_writing()

        assert await call.code() == grpc.StatusCode.OK
        assert removed_headers(first) == ["x-gateway-destination-endpoint"]
        assert set_headers(routed) == {"x-gateway-destination-endpoint": "10.0.0.1:8000"}
        assert (await picker.completions.get()).outcome is Outcome.ROUTED


async def test_missing_request_id_becomes_a_uuid() -> None:
    router = FixedRouter(ROUTE)
    async with serving(router) as picker:
        call = picker.open()
        headers = pb.HttpHeaders(headers=header_map([(":path", "/")]), end_of_stream=True)
        await send(call, pb.ProcessingRequest(request_headers=headers))
        (answer,) = await receive(call, 1)
        await call.done_writing()
        await call.code()

        request_id = set_headers(answer)["x-request-id"]
        assert UUID(request_id).version == 4
        assert router.requests[0].request_id == request_id


async def test_refusal_ends_the_stream_with_ok() -> None:
    async with serving(FixedRouter(Refusal(RefusalCode.BAD_REQUEST, "bad"))) as picker:
        call = picker.open()
        await send(call, request_headers(config=DUPLEX), request_body(b"{", end=True))
        (answer,) = await receive(call, 1)

        assert answer.immediate_response.status.code == 400
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
        assert (await picker.completions.get()).outcome is Outcome.REFUSED


async def test_body_of_5_mb_in_one_message_is_routed() -> None:
    async with serving(FixedRouter(ROUTE), max_body_bytes=5_000_000) as picker:
        call = picker.open()
        await send(call, request_headers(config=BUFFERED), request_body(b"x" * 5_000_000))
        _, answer = await receive(call, 2)
        await call.done_writing()
        await call.code()

        assert metadata_destination(answer) == "10.0.0.1:8000"


async def test_body_over_the_limit_is_answered_413_and_not_with_a_grpc_error() -> None:
    async with serving(FixedRouter(ROUTE), max_body_bytes=5_000_000) as picker:
        call = picker.open()
        await send(call, request_headers(config=BUFFERED), request_body(b"x" * 5_000_001))
        _, answer = await receive(call, 2)

        assert answer.immediate_response.status.code == 413
        assert await call.code() == grpc.StatusCode.OK


class FaultyRouter(Router):
    """Fails with a text that quotes the prompt."""

    def route(self, request: RoutingRequest) -> Eventual[RoutingResult]:
        raise LookupError(f"no block for {request.body!r}")


async def test_failing_router_is_answered_500_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FaultyRouter()) as picker:
        call = picker.open()
        with caplog.at_level(logging.ERROR):
            await send(call, request_headers(config=DUPLEX), request_body(b"secret", end=True))
            (answer,) = await receive(call, 1)

        assert answer.immediate_response.status.code == 500
        assert answer.immediate_response.body.startswith(b"inference error: Internal - ")
        assert await call.code() == grpc.StatusCode.OK
        assert picker.errors == ["router"]
        assert "LookupError" in caplog.text
        assert "in route" in caplog.text  # where it failed
        assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        pytest.param(b"\xff\xff", "not_protobuf", "2 bytes is not", id="not_protobuf"),
        pytest.param(
            request_body(BODY).SerializeToString(), "out_of_order", "request_header_mode", id="body_first"
        ),
    ],
)
async def test_unusable_message_fails_its_stream_alone(data: bytes, reason: str, detail: str) -> None:
    async with serving(FixedRouter(ROUTE)) as picker:
        bystander = picker.open()
        await send(bystander, request_headers(config=DUPLEX))
        call = picker.open()
        await call.write(data)

        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert detail in (await call.details() or "")
        assert picker.errors == [reason]
        assert (await picker.completions.get()).outcome is Outcome.ABORTED
        await send(bystander, request_body(BODY, end=True))
        assert kind_of((await receive(bystander, 1))[0]) == "request_headers"
