"""What is read and said of requests by a running process: gRPC inference, reported numbers, the list of models."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from aiohttp import web
from google.protobuf.json_format import MessageToDict

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import (
    DUPLEX,
    request_body,
    request_headers,
    response_body,
    response_headers,
    response_trailers,
)
from support.gateway import Gateway, Request, gateway
from support.protobuf import content, frame, number, tokenized
from support.waiting import until

pytestmark = pytest.mark.slow

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
REPORTER = {
    "type": "request-attribute-reporter",
    "parameters": {
        "attributes": [
            {"key": {"name": "x-gateway-inference-request-cost"}, "expression": "usage.total_tokens"}
        ]
    },
}
GRPC = ("content-type", "application/grpc")


async def generate(gate: Gateway, n_ids: int) -> Request:
    """Send a Generate request until its destination is known."""
    call = gate.open()
    message = frame(tokenized(*range(n_ids)))
    for each in (request_headers((":path", GENERATE), GRPC, config=DUPLEX), request_body(message, end=True)):
        await call.write(each.SerializeToString())
    first, second = await call.read(), await call.read()
    assert isinstance(first, pb.ProcessingResponse)
    assert isinstance(second, pb.ProcessingResponse)
    assert second.request_body.response.body_mutation.streamed_response.body == message
    return Request(call, MessageToDict(first.dynamic_metadata)["envoy.lb"]["x-gateway-destination-endpoint"])


async def test_grpc_inference_gives_exact_prefixes_usage_and_cost(tmp_path: Path) -> None:
    plugins = [{"type": "prefix-cache-scorer", "parameters": {"tier": "gpu"}}, REPORTER]
    tiers = [{"name": "gpu", "source": "routing", "lruCapacityPerServer": 1000}]
    async with gateway(tmp_path, plugins=plugins, tiers=tiers) as gate:
        first = await generate(gate, 100)
        assert await gate.in_flight() == {"a": (0, 0), "b": (0, 0)} | {first.endpoint: (1, 100)}
        chunk = frame(content(1, number(2, 100) + number(3, 1)))
        last = frame(content(2, number(3, 100) + number(4, 7) + number(5, 64)))
        await first.say(response_headers(GRPC))
        await first.say(response_body(chunk))
        await until(gate.now(**{first.endpoint: (1, 0)}), what="the first token")
        await first.say(response_body(last))
        end = await first.say(response_trailers())
        metrics = await gate.served.metrics()
    cost = {"envoy.lb": {"x-gateway-inference-request-cost": 107.0}}
    assert MessageToDict(end.dynamic_metadata) == cost
    assert "kvatlas_response_output_tokens_total 7.0" in metrics.splitlines()
    assert "kvatlas_response_cached_tokens_total 64.0" in metrics.splitlines()


@contextlib.asynccontextmanager
async def engine(*names: str) -> AsyncGenerator[str]:
    """Run a server with a list of models; yield `host:port`."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": name, "object": "model"} for name in names]}
        )

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def listed(gate: Gateway) -> tuple[int, bytes]:
    call = gate.open()
    get = request_headers((":path", "/v1/models"), (":method", "GET"), end=True, config=DUPLEX)
    await call.write(get.SerializeToString())
    reply = await call.read()
    assert isinstance(reply, pb.ProcessingResponse)
    return reply.immediate_response.status.code, reply.immediate_response.body


async def test_models_of_the_fleet_are_listed_by_the_picker(tmp_path: Path) -> None:
    async with engine("m", "adapter-b") as one, engine("adapter-a", "m") as other:
        static = [
            {"name": name, "address": address, "events": "", "metrics": ""}
            for name, address in (("one", one), ("other", other))
        ]
        plugins = [{"type": "queue-scorer"}, {"type": "models-responder"}]
        async with gateway(tmp_path, endpoints={"static": static}, plugins=plugins) as gate:

            async def is_whole() -> bool:
                status, body = await listed(gate)
                names = [each["id"] for each in json.loads(body)["data"]] if status == 200 else []
                return names == ["adapter-a", "adapter-b", "m"]

            await until(is_whole, what="the models of both engines")
