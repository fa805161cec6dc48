"""Prefill, decode and encode end to end: real Envoy, kvatlas, sidecars, simulated servers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.sim.demo_model import write_demo_model
from support.sidecar import reference
from support.sidecar.json_values import as_object
from support.sidecar.server import Start, stand_in
from support.stage_path import Answered, StagePath, restart, stage_path

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
NOWHERE = "127.0.0.1:1"
CLIENT_HEADERS = {
    "x-prefiller-host-port": NOWHERE,
    "x-encoder-hosts-ports": NOWHERE,
    "x-data-parallel-host-port": NOWHERE,
    "x-kv-cache-source-host-port": NOWHERE,
    "x-gateway-destination-endpoint": NOWHERE,
}
"""What a client may try, to choose servers itself."""

SIDECARS = [
    pytest.param(stand_in, id="stand_in"),
    pytest.param(
        reference.reference_sidecar,
        id="reference",
        marks=pytest.mark.skipif(not reference.is_there(), reason=reference.NEEDS),
    ),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return folder


def long_request(path: str, word: str, *, stream: bool) -> dict[str, Any]:
    """Return a request of 200 to 600 tokens that no server has cached if the word is new."""
    text = f"{word} " * 100
    fields: dict[str, Any] = (
        {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    )
    return fields | ({"stream": True, "stream_options": {"include_usage": True}} if stream else {})


def usage_of(answer: Answered) -> dict[str, Any]:
    """Return the usage of an answer, streamed or not."""
    whole = as_object(answer.body)
    if whole:
        return as_object(whole["usage"])
    events = [json.loads(line[6:]) for line in answer.body.splitlines() if line.startswith("data: {")]
    return next(event["usage"] for event in events if event.get("usage"))


def servers_of(answer: Answered, *stages: str) -> list[str]:
    """Return the servers of a decision's stages, in alphabetic order."""
    return sorted(name for stage in stages for name in answer.chosen[stage])


@pytest.mark.slow
@pytest.mark.parametrize("start", SIDECARS)
async def test_requests_take_the_servers_that_were_chosen(start: Start, model: Path, tmp_path: Path) -> None:
    async with stage_path(model, tmp_path, start) as path:
        words = iter("mora toki luma sero".split())
        for api in (CHAT, COMPLETIONS):
            for stream in (False, True):
                await pair_is_taken(path, api, long_request(api, next(words), stream=stream))
        await short_prompt_stays_with_the_decode_server(path)
        await media_are_encoded_first(path)
        await path.until_in_flight()


async def pair_is_taken(path: StagePath, api: str, fields: dict[str, Any]) -> None:
    first = await path.ask(api, fields, CLIENT_HEADERS)
    again = await path.ask(api, {**fields, "max_tokens": 2})

    assert (first.status, again.status) == (200, 200)
    assert [first.server] == first.chosen["decode"]
    assert [*first.worked] == servers_of(first, "decode", "prefill")
    assert usage_of(first)["completion_tokens"] == 4
    assert usage_of(first)["prompt_tokens_details"]["cached_tokens"] == 0, "the prefill server had nothing"
    assert usage_of(again)["prompt_tokens_details"]["cached_tokens"] > 100


async def short_prompt_stays_with_the_decode_server(path: StagePath) -> None:
    for headers in ({}, CLIENT_HEADERS):
        answer = await path.ask(COMPLETIONS, {"prompt": "Ave"}, headers)

        assert answer.status == 200
        assert [*answer.worked] == [answer.server] == answer.chosen["decode"]
        assert answer.chosen.keys() == {"decode"}


async def media_are_encoded_first(path: StagePath) -> None:
    parts = [{"type": "image_url", "image_url": {"url": f"http://images/{n}"}} for n in range(2)]
    answer = await path.ask(CHAT, {"messages": [{"role": "user", "content": parts}]}, CLIENT_HEADERS)

    assert answer.status == 200, "no other server ever has an item encoded"
    assert answer.chosen["encode"] == ["encode-0"]
    assert [*answer.worked] == servers_of(answer, "decode", "prefill")


@pytest.mark.slow
@pytest.mark.parametrize("start", SIDECARS)
async def test_prefill_server_that_dies_is_the_sidecars_to_retry_and_bookings_end(
    start: Start, model: Path, tmp_path: Path
) -> None:
    async with stage_path(model, tmp_path, start, never_prefills=True) as path:
        given_up = asyncio.create_task(path.ask(CHAT, long_request(CHAT, "nuvo", stream=True)))
        server = await path.prefilling()
        await server.stop()
        assert (await given_up).status == 502
        await path.until_in_flight()
        await server.start()

        retried = asyncio.create_task(path.ask(CHAT, long_request(CHAT, "vela", stream=False)))
        server = await path.prefilling()
        await server.stop()
        await restart(server)
        answer = await retried

        assert answer.status == 200
        assert [answer.server] == answer.chosen["decode"]
        assert answer.chosen["prefill"] == [server.config.name]
        assert [*answer.worked] == servers_of(answer, "decode", "prefill")
        await path.until_in_flight()
