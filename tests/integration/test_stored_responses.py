"""Responses that their engine keeps: later requests that name one go to the server that has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Value

from kvatlas.api.extproc import ext_proc_pb2 as pb
from support.ext_proc import (
    DUPLEX,
    metadata_destination,
    metadata_of,
    request_headers,
    response_body,
    response_headers,
    subset_hint,
)
from support.gateway import ADDRESSES, EVENT_STREAM, Gateway, Request, gateway
from support.replica_sections import mesh
from support.waiting import until

JSON = ("content-type", "application/json")
QUEUED = {"background": True, "status": "queued", "usage": None}


def response_of(response_id: str, **more: Any) -> bytes:
    """Return a response as vLLM writes it."""
    return json.dumps({"id": response_id, "object": "response", "output": [{"id": "msg_1"}]} | more).encode()


async def created(gate: Gateway, response_id: str, served: str = "", **more: Any) -> Request:
    """Send a request of the responses API, and return it once its whole response has come from the address `served`."""
    request = await gate.post("/v1/responses", {"model": "m", "input": "Hello"} | more)
    by = Value(string_value=served or request.address)
    reported = metadata_of("envoy.lb", "x-gateway-destination-endpoint-served", by)
    await request.say(response_headers(JSON, metadata=reported))
    body = response_of(response_id, **(QUEUED if more.get("background") else {}))
    await request.say(response_body(body[:9]))
    await request.say(response_body(body[9:]))
    await request.end()
    return request


async def read(gate: Gateway, path: str, method: str = "GET", subset: Sequence[str] = ()) -> str:
    """Send a request without body, and return the endpoint that it goes to."""
    call = gate.open()
    head = [(":method", method), (":path", path)]
    hint = subset_hint(subset) if subset else None
    await call.write(request_headers(*head, config=DUPLEX, end=True, metadata=hint).SerializeToString())
    reply = await call.read()
    assert isinstance(reply, pb.ProcessingResponse)
    call.cancel()
    return ADDRESSES[metadata_destination(reply)]


@pytest.mark.slow
async def test_requests_that_name_a_response_go_to_its_server(tmp_path: Path) -> None:
    async with gateway(tmp_path) as gate:
        for number in range(4):
            name = f"resp_{number}"
            first = await created(gate, name)
            for _ in range(4):
                assert await read(gate, f"/v1/responses/{name}") == first.endpoint
                assert await read(gate, f"/v1/responses/{name}/cancel", "POST") == first.endpoint
                later = await created(gate, f"{name}_later", previous_response_id=name)
                assert later.endpoint == first.endpoint


@pytest.mark.slow
async def test_request_goes_elsewhere_when_its_server_is_not_allowed_or_gone(tmp_path: Path) -> None:
    first, second = ADDRESSES
    async with gateway(tmp_path) as gate:
        await created(gate, "resp_1", served=first)
        await created(gate, "resp_2", served="127.0.0.1:9")
        assert await read(gate, "/v1/responses/resp_1") == ADDRESSES[first], (
            "the server of the response counts"
        )
        for _ in range(3):
            assert await read(gate, "/v1/responses/resp_1", subset=[second]) == ADDRESSES[second]
        assert {await read(gate, "/v1/responses/resp_2") for _ in range(20)} == {"a", "b"}


@pytest.mark.slow
async def test_replicas_know_each_others_responses(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    sections = mesh(tmp_path, "one", "two")
    for each in folders:
        each.mkdir()
    async with (
        gateway(folders[0], replicas=sections["one"]) as one,
        gateway(folders[1], replicas=sections["two"]) as other,
    ):
        first = await created(one, "resp_1")

        async def is_known() -> bool:
            return {await read(other, "/v1/responses/resp_1") for _ in range(8)} == {first.endpoint}

        await until(is_known, what="the other replica to know the response")


@pytest.mark.slow
async def test_streamed_response_is_known_by_its_first_event(tmp_path: Path) -> None:
    async with gateway(tmp_path) as gate:
        for number in range(4):
            created = json.dumps({"response": {"id": f"resp_{number}", "status": "in_progress"}}).encode()
            request = await gate.post("/v1/responses", {"model": "m", "input": "Hello", "stream": True})
            await request.say(response_headers(EVENT_STREAM))
            await request.say(response_body(b"event: response.created\ndata: " + created + b"\n\n"))
            for _ in range(4):
                path = f"/v1/responses/resp_{number}/cancel"
                assert await read(gate, path, "POST") == request.endpoint
            await request.end()


@pytest.mark.slow
async def test_background_response_is_in_flight_after_it_was_queued(tmp_path: Path) -> None:
    async with gateway(tmp_path, plugins=[{"type": "active-request-scorer"}]) as gate:
        first = await created(gate, "resp_1", background=True)
        (n_requests, n_tokens) = (await gate.in_flight())[first.endpoint]
        assert n_requests == 1
        assert n_tokens > 0, "the server has not begun to compute"
        for number in range(3):
            other = await gate.request(1)
            assert other.endpoint != first.endpoint, number
            other.call.cancel()
            await until(
                gate.now(**{first.endpoint: (n_requests, n_tokens)}), what="the other request to be over"
            )
