"""Clients that send prompts which cost much to encode, one alone or many at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE
from support.ext_proc import header_map, request_body
from support.models import TINY
from support.serve import Served, serving
from support.waiting import until

CHUNK = 2**20
LETTERS = (" ", "!", "x", "\u4f60")
"""Texts of one of these alone have no place to cut."""

Call = grpc.aio.StreamStreamCall[pb.ProcessingRequest, pb.ProcessingResponse]


@asynccontextmanager
async def server(
    folder: Path, *, context: int | None = 10**7, **tokenization: Any
) -> AsyncGenerator[tuple[Served, grpc.aio.Channel]]:
    """Run a kvatlas with a tokenizer and one endpoint, and a gateway's channel to it."""
    model: dict[str, Any] = {"names": ["tiny"], "tokenizer": str(TINY)}
    if context is not None:
        model["maxModelLen"] = context
    endpoint = {"name": "a", "address": "127.0.0.1:1", "events": "", "metrics": ""}
    config = {"model": model, "tokenization": tokenization, "endpoints": {"static": [endpoint]}}
    async with (
        serving(config, folder, ready=False) as served,
        grpc.aio.insecure_channel(f"127.0.0.1:{served.ports['extProc']}") as channel,
    ):
        yield served, channel


async def send(channel: grpc.aio.Channel, fields: dict[str, Any], path: str = "/v1/completions") -> Call:
    """Send a request in chunks, as Envoy does, without its trailers; it is not routed yet."""
    process: grpc.aio.StreamStreamMultiCallable[pb.ProcessingRequest, pb.ProcessingResponse] = (
        channel.stream_stream(
            f"/{EXT_PROC_SERVICE}/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
    )
    call = process()
    headers = header_map([(":method", "POST"), (":path", path), ("content-type", "application/json")])
    await call.write(pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers)))
    body = json.dumps({"model": "tiny", **fields}).encode()
    for at in range(0, len(body), CHUNK):
        await call.write(request_body(body[at : at + CHUNK], end=at + CHUNK >= len(body)))
    return call


async def route(channel: grpc.aio.Channel, fields: dict[str, Any], path: str = "/v1/completions") -> None:
    """Send a request and wait until it is routed."""
    call = await send(channel, fields, path)
    answer = await call.read()
    assert isinstance(answer, pb.ProcessingResponse)
    assert answer.request_headers.response.header_mutation.set_headers, answer
    call.cancel()


async def metric(served: Served, name: str) -> float:
    """Return the value of a series; 0 if it has none."""
    lines = (await served.metrics()).splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"kvatlas_{name} ")), 0.0)


async def without_prefix(served: Served, reason: str) -> float:
    return await metric(served, f'prompts_without_prefix_total{{reason="{reason}"}}')


async def known_tokens(served: Served, prompt: str) -> int:
    """Return the number of token ids of an ordinary prompt; 0 if it is routed without prefix."""
    found = await served.post("/v1/score", {"model": "tiny", "prompt": prompt})
    assert found["noPrefixReason"] is None, found["noPrefixReason"]
    return int(found["tokens"])


def text(name: object, n_chars: int = 20_000) -> str:
    """Return a text that is not known yet, with words that are too long for the native encoder in all its segments."""
    return "".join(f"{'ab' * 150} {name} {line} lines\n" for line in range(n_chars // 310))


def peak_mebibytes(served: Served) -> int:
    """Return the most memory that the process ever had."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) // 1024


async def test_prompt_of_one_long_word_costs_no_memory_and_nobody_elses_prefix(tmp_path: Path) -> None:
    async with server(tmp_path, timeout="20s") as (served, channel):
        assert await known_tokens(served, text("before")) > 1_000
        before = peak_mebibytes(served)
        words = [letter * (4 * 2**20 // len(letter.encode())) for letter in LETTERS]
        await asyncio.gather(*(route(channel, {"prompt": word}) for word in words))
        assert await without_prefix(served, "too_long") == len(words)
        assert await known_tokens(served, text("after")) > 1_000
        # The library takes 560 MiB for each of them; bodies and texts take some copies of 4 MiB.
        assert peak_mebibytes(served) - before < 400


async def test_prompt_that_cannot_fit_the_models_context_is_not_encoded(tmp_path: Path) -> None:
    content = "word " * 60_000
    messages = [{"role": "user", "content": content}]
    async with server(tmp_path, context=None, timeout="20s") as (served, channel):
        await route(channel, {"prompt": content})
        await route(channel, {"messages": messages}, "/v1/chat/completions")
        assert await without_prefix(served, "too_long") == 2
        assert await metric(served, "tokenizer_encoded_tokens_total") == 0


async def test_long_chats_are_encoded_up_to_the_limit_of_the_queue(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": f"{number} word " * 500} for number in range(1000)]
    async with server(tmp_path, timeout="20s", maxQueuedChars=8 * 2**20) as (served, channel):
        await route(channel, {"messages": messages}, "/v1/chat/completions")
        assert await metric(served, "tokenizer_encoded_tokens_total") > 10**6
        assert await without_prefix(served, "too_long") == 0
        await route(channel, {"messages": messages * 2}, "/v1/chat/completions")
        assert await without_prefix(served, "too_long") == 1


async def test_work_is_dropped_when_the_clients_of_a_burst_have_left(tmp_path: Path) -> None:
    async with server(tmp_path, timeout="60s", threads=1) as (served, channel):
        calls = [await send(channel, {"prompt": text(number, 2**20)}) for number in range(15)]

        async def most_wait() -> bool:
            return await metric(served, "tokenizer_queued_chars") > 4 * 2**20

        await until(most_wait, what="the prompts of the burst in the queue")
        # Short prompts come first.
        for number in range(3):
            assert await known_tokens(served, text(f"short {number}")) > 1_000
        assert await most_wait()
        for call in calls:
            call.cancel()

        async def is_dropped() -> bool:
            return await metric(served, "tokenizer_queued_chars") < 2 * 32_768

        await until(is_dropped, what="the end of work that nobody waits for")
        assert await metric(served, "tokenizer_slices_dropped_total") > 50
        assert await known_tokens(served, text("after")) > 1_000


async def test_next_prompt_has_its_prefix_when_those_of_a_burst_have_timed_out(tmp_path: Path) -> None:
    async with server(tmp_path, timeout="1s", threads=1) as (served, channel):
        prompts = [text(number, 2**20) for number in range(24)]
        await asyncio.gather(*(route(channel, {"prompt": prompt}) for prompt in prompts))
        reasons = ("tokenize_timeout", "tokenizer_busy")
        assert sum([await without_prefix(served, reason) for reason in reasons]) > 8
        # The first prompt after the burst waits for one slice at most.
        assert await metric(served, "tokenizer_queued_chars") < 2 * 32_768
        assert await known_tokens(served, text("after")) > 1_000
