"""Clients that fill what all requests share: uploads that never end, headers alone, names of megabytes."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import (
    BUFFERED,
    DUPLEX,
    kind_of,
    metadata_destination,
    request_body,
    request_headers,
    response_body,
    response_headers,
    streamed,
)
from support.gateway import ADDRESSES, FLEET, Call, Gateway, gateway
from support.waiting import until

MIB = 1024 * 1024
BODY = b'{"model":"m","prompt":"p"}'
both_modes = pytest.mark.parametrize(
    "config", [pytest.param(DUPLEX, id="duplex"), pytest.param(BUFFERED, id="buffered")]
)


@asynccontextmanager
async def client_of(at: Gateway) -> AsyncGenerator[Gateway]:
    """Open a connection of its own, for large messages."""
    sizes = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    target = f"127.0.0.1:{at.served.ports['extProc']}"
    async with grpc.aio.insecure_channel(target, options=sizes) as channel:
        process: grpc.aio.StreamStreamMultiCallable[bytes, pb.ProcessingResponse] = channel.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        yield Gateway(at.served, process)


async def say(call: Call, *messages: pb.ProcessingRequest) -> None:
    for message in messages:
        await call.write(message.SerializeToString())


async def counted(at: Gateway, reason: str) -> float:
    """Return how many requests had no token ids for this reason."""
    start = f'kvatlas_prompts_without_prefix_total{{reason="{reason}"}} '
    lines = (await at.served.metrics()).splitlines()
    return next((float(line[len(start) :]) for line in lines if line.startswith(start)), 0.0)


async def value(at: Gateway, metric: str) -> float:
    start = f"kvatlas_{metric} "
    lines = (await at.served.metrics()).splitlines()
    return next(float(line[len(start) :]) for line in lines if line.startswith(start))


async def has_prefix(at: Gateway) -> bool:
    """Send a request of 100 token ids; returns whether they were read."""
    body = {"model": "m", "prompt": list(range(100))}
    request = await at.post("/v1/completions", body, ("x-request-id", "honest"))
    await request.end()
    decision = await at.served.get("/v1/decisions/honest")
    return bool(decision["tokens"] == 100)


async def test_uploads_that_never_end_leave_room_for_the_prefix_of_others(tmp_path: Path) -> None:
    limits = {"maxBodyBytes": 2 * MIB, "maxHeldBytes": 8 * MIB}
    async with gateway(tmp_path, extProc=limits) as at, client_of(at) as attacker:
        uploads = [attacker.open() for _ in range(6)]
        for call in uploads:
            await say(call, request_headers(config=DUPLEX), request_body(b"x" * (2 * MIB - 1)))
        await until(lambda: held_at_least(at, 5 * MIB), what="uploads that are held")

        assert await has_prefix(at)
        assert await counted(at, "overload_bytes") >= 1  # what had no room went on without its prefix
        for call in uploads:
            call.cancel()
        await until(lambda: value_is(at, "held_bytes", 0), what="all given back")


async def held_at_least(at: Gateway, n_bytes: int) -> bool:
    return await value(at, "held_bytes") >= n_bytes


async def value_is(at: Gateway, metric: str, wanted: float) -> bool:
    return await value(at, metric) == wanted


@both_modes
async def test_headers_alone_take_the_prefix_from_nobody(
    tmp_path: Path, config: pb.ProtocolConfiguration
) -> None:
    sections = {"extProc": {"maxPendingRequests": 4}, "endpoints": LABELLED, "models": MODELS}
    async with gateway(tmp_path, **sections) as at, client_of(at) as attacker:
        waiting = [attacker.open() for _ in range(4)]
        for call in waiting:
            await say(call, request_headers(config=config))
        await until(lambda: value_at_least(at, "open_streams", 4), what="streams of headers alone")

        await until(lambda: has_prefix(at), what="a request with its prefix")
        for call in waiting:
            call.cancel()
        await until(lambda: value_is(at, "open_streams", 0), what="all given back")
        assert (await value(at, "pending_requests"), await value(at, "held_bytes")) == (0, 0)


async def value_at_least(at: Gateway, metric: str, wanted: float) -> bool:
    return await value(at, metric) >= wanted


LABELLED = {
    "static": [
        endpoint | {"labels": {"model": name}}
        for endpoint, name in zip(FLEET["static"], ("m", "n"), strict=True)
    ]
}
MODELS = [{"names": [name], "endpointLabels": {"model": name}} for name in ("m", "n")]


async def test_upload_past_the_time_limit_goes_on_without_its_prefix(tmp_path: Path) -> None:
    sections = {"extProc": {"requestTimeout": "500ms"}, "endpoints": LABELLED, "models": MODELS}
    async with gateway(tmp_path, **sections) as at:
        beginning = b'{"messages":[{"role":"user","content":"model"}],"model":"n","x":"'
        slow, unnamed, headers_alone = at.open(), at.open(), at.open()
        await say(slow, request_headers(config=DUPLEX), request_body(beginning))
        await say(unnamed, request_headers(config=DUPLEX), request_body(b'{"messages":["'))
        await say(headers_alone, request_headers(config=DUPLEX))

        replies = [await reply_of(slow), await reply_of(slow)]
        await say(slow, request_body(b'"}', end=True))
        replies.append(await reply_of(slow))
        assert ADDRESSES[metadata_destination(replies[0])] == "b"  # which serves model n
        assert streamed(replies, "request_body") == [(beginning, False), (b'"}', True)]
        for call in (unnamed, headers_alone):
            assert (await reply_of(call)).immediate_response.status.code == 408
        assert await counted(at, "overload_time") == 1
        assert await value(at, "pending_requests") == 0
        slow.cancel()


async def reply_of(call: Call) -> pb.ProcessingResponse:
    answer = await call.read()
    assert isinstance(answer, pb.ProcessingResponse)
    return answer


COMPLETION = (":path", "/v1/completions")


async def test_long_names_are_routed_and_not_kept(tmp_path: Path) -> None:
    async with gateway(tmp_path) as at, client_of(at) as attacker:
        for _ in range(20):
            request = await attacker.post("/v1/completions", {"model": "n" * (2 * MIB), "prompt": [1, 2, 3]})
            request.call.cancel()
        long = "l" * 60_000
        names = (
            "x-request-id",
            "x-llm-d-inference-objective",
            "x-llm-d-inference-fairness-id",
            "traceparent",
        )
        call = at.open()
        headers = [COMPLETION, *((name, long) for name in names)]
        await say(call, request_headers(*headers, config=DUPLEX), request_body(BODY, end=True))
        assert metadata_destination(await reply_of(call)) in ADDRESSES
        call.cancel()

        assert await counted(at, "name_too_long") == 20
        async with at.served.session.get(f"{at.url}/v1/decisions") as answer:
            assert len(await answer.read()) < 20_000
        async with at.served.session.get(f"{at.url}/v1/decisions/{long[:256]}") as answer:
            assert answer.status == 200
            assert len(await answer.read()) < 8000


async def test_rewritten_response_grows_no_more_than_by_a_short_name(tmp_path: Path) -> None:
    async with gateway(tmp_path) as at, client_of(at) as attacker:
        body = json.dumps({"model": "n" * (2 * MIB), "prompt": [1, 2, 3]}).encode()
        call = attacker.open()
        to_short, to_long = (("x-llm-d-model-name-rewrite", "t" * length) for length in (1, 60_000))
        await say(call, request_headers(COMPLETION, to_short, config=DUPLEX), request_body(body, end=True))
        while kind_of(await reply_of(call)) != "request_body":
            pass
        await say(call, response_headers(("content-type", "text/event-stream")))
        assert kind_of(await reply_of(call)) == "response_headers"
        n_bytes = 0
        for _ in range(20):
            await say(call, response_body(b'data: {"model":"t"}\n\n'))
            n_bytes += (await reply_of(call)).ByteSize()
        assert n_bytes < 20 * 1024
        call.cancel()

        refused = at.open()
        await say(refused, request_headers(COMPLETION, to_long, config=DUPLEX), request_body(BODY, end=True))
        assert (await reply_of(refused)).immediate_response.status.code == 400


async def test_too_many_headers_are_refused_and_too_large_ones_end_their_stream_alone(tmp_path: Path) -> None:
    async with gateway(tmp_path) as at, client_of(at) as attacker:
        many, large = attacker.open(), attacker.open()
        await say(many, request_headers(*[("x", "y")] * 100_000, config=DUPLEX))
        assert (await reply_of(many)).immediate_response.status.code == 431
        await say(large, request_headers(("x", "y" * 2 * MIB), config=DUPLEX))
        assert await large.code() is grpc.StatusCode.INVALID_ARGUMENT

        assert await has_prefix(at)
        await until(lambda: value_is(at, "open_streams", 0), what="all given back")
