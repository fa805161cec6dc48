"""Bodies of many tiny values: what costs too much to read is not read, and says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import grpc.aio

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.tokenization.requests.cost import CONTAINER, MAX_COST
from support.ext_proc import DUPLEX, kind_of, request_body, request_headers
from support.models import TINY
from support.serve import Served, serving

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
MEBIBYTE = 2**20
PIECE = 256 * 1024

TINY_PART = b'{"type":"text","text":"a"}'
EMPTY_CALL = b'{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}'
EMPTY_TOOL = b'{"type":"function","function":{"name":"f"}}'


def filled(unit: bytes, size: int) -> bytes:
    """Return a JSON list of as many units as fit."""
    return b"[" + b",".join([unit] * (size // (len(unit) + 1))) + b"]"


def chat(content: bytes = b'"hello"', more: bytes = b"", then: bytes = b"") -> bytes:
    return (
        b'{"model":"tiny",' + more + b'"messages":[{"role":"user","content":' + content + b"}" + then + b"]}"
    )


@asynccontextmanager
async def server(folder: Path) -> AsyncGenerator[Served]:
    endpoint = {"name": "a", "address": "127.0.0.1:1", "events": "", "replay": ""}
    config = {
        "model": {"names": ["tiny"], "tokenizer": str(TINY), "maxModelLen": 10_000_000},
        "tokenization": {"timeout": "30s"},  # another test may have the cores
        "endpoints": {"static": [endpoint]},
    }
    async with serving(config, folder, ready=False) as served:
        yield served


async def route(served: Served, body: bytes) -> dict[str, Any]:
    """Send a chat as the gateway does, and return the decision."""
    no_limit = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}", options=no_limit) as channel:
        stream = channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()
        await stream.write(request_headers(config=DUPLEX))
        for at in range(0, len(body), PIECE):
            await stream.write(request_body(body[at : at + PIECE], end=at + PIECE >= len(body)))
        reply = await stream.read()
        stream.cancel()
    assert isinstance(reply, pb.ProcessingResponse)
    assert kind_of(reply) == "request_headers"
    found = await served.get("/v1/decisions/id-1")
    return dict(found)


HOSTILE = {
    "parts": chat(filled(TINY_PART, 12 * MEBIBYTE)),
    "tool calls": chat(then=b',{"role":"assistant","tool_calls":' + filled(EMPTY_CALL, 8 * MEBIBYTE) + b"}"),
    "tools": chat(more=b'"tools":' + filled(EMPTY_TOOL, 8 * MEBIBYTE) + b","),
    "nested": chat(more=b'"x":' + filled(b"[[[[]]]]", 8 * MEBIBYTE) + b","),
}
"""Chats that take seconds to read."""


async def test_chat_of_many_tiny_values_is_routed_without_prefix_and_says_why(tmp_path: Path) -> None:
    n_parts = MAX_COST // (CONTAINER + 2) // 2
    within = chat(b"[" + b",".join([TINY_PART] * n_parts) + b"]")
    async with server(tmp_path) as served:
        hostile = {name: await route(served, body) for name, body in HOSTILE.items()}
        usual, long = await route(served, chat()), await route(served, within)
        counts = (await served.metrics()).splitlines()

    assert {name: each["noPrefixReason"] for name, each in hostile.items()} == dict.fromkeys(
        HOSTILE, "too_complex"
    )
    assert all(each["picked"] == ["a"] for each in hostile.values())
    assert f'kvatlas_prompts_without_prefix_total{{reason="too_complex"}} {len(HOSTILE)}.0' in counts
    assert [usual["noPrefixReason"], long["noPrefixReason"]] == [None, None]
    assert long["tokens"] > n_parts


QUESTIONS = [
    ("/query", b"token_ids", b"1"),
    ("/query_by_hash", b"seq_hashes", b"1"),
    ("/query_by_hash", b"block_hashes", b"-1"),
    ("/v1/score", b"token_ids", b"1"),
    ("/v1/score", b"messages", b'{"role":"user"}'),
]
WRONG = [
    ("/query", b"token_ids", b"4294967296"),
    ("/query", b"token_ids", b'"a"'),
    ("/query_by_hash", b"seq_hashes", b"18446744073709551616"),
    ("/v1/score", b"keys", b"[]"),
]
"""Path, field, and a value that it may not have."""


async def test_question_of_too_many_values_is_refused_and_a_wrong_value_named(tmp_path: Path) -> None:
    n_before = 40_000
    async with server(tmp_path) as served:
        for path, field, unit in QUESTIONS:
            body = b'{"' + field + b'":' + filled(unit, 7 * MEBIBYTE) + b"}"
            status, answer = await ask(served, path, body)
            assert (path, status) == (path, 413)
            assert "tokenization.maxReadingCost" in answer["error"]["message"]
        for path, field, value in WRONG:
            body = b'{"' + field + b'":[' + b"7," * n_before + value + b"]}"
            status, answer = await ask(served, path, body)
            assert (value, status) == (value, 422)
            assert answer["error"]["detail"][0]["field"] == f"{field.decode()}.{n_before}"
        status, answer = await ask(served, "/v1/score", b'{"messages":' + filled(b"3", MEBIBYTE) + b"}")
        assert (status, len(answer["error"]["detail"])) == (422, 1)
        status, answer = await ask(served, "/v1/score", b'{"model":"' + b"m" * 513 + b'","prompt":"hello"}')
        assert (status, len(str(answer)) < 500) == (400, True)
        long, _ = await ask(served, "/query", b'{"token_ids":' + filled(b"1", MEBIBYTE) + b"}")
        counts = (await served.metrics()).splitlines()

    assert long == 200
    assert f'kvatlas_rest_refusals_total{{reason="too_complex"}} {len(QUESTIONS)}.0' in counts


async def ask(served: Served, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    url = f"http://127.0.0.1:{served.ports['rest']}{path}"
    async with served.session.post(
        url, data=BytesIO(body), headers={"content-type": "application/json"}
    ) as answer:
        return answer.status, await answer.json()
