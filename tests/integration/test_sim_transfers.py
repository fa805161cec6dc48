"""Simulated servers send each other KV state as vLLM's NixlConnector does, over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvatlas.configs.loader import load_config
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.kv_exchange import KvExchange
from kvatlas.sim.kv_network import KvNetwork, NetworkSpec
from kvatlas.sim.live import SimulateOptions, server_configs, stage_sections
from kvatlas.sim.media import EncodedMedia
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.roles import ENCODE, parse_roles
from kvatlas.sim.server import ServerConfig
from support.waiting import until

CHAT = "/v1/chat/completions"
PARAMS = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None}
"""As the sidecar sends them to the prefill server, together with limits of one token."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TokenizerText:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return TokenizerText(folder)


@asynccontextmanager
async def two_servers(
    text: TokenizerText, *, bytes_per_s: float = 1e12, time_scale: float = 0.0
) -> AsyncGenerator[tuple[Fleet, aiohttp.ClientSession]]:
    exchange = KvExchange(KvNetwork(NetworkSpec(server_bytes_per_s=bytes_per_s), {}), bytes_per_token=1.0)
    configs = [
        ServerConfig(name=name, model=MODEL_NAME, exchange=exchange, time_scale=time_scale)
        for name in ("p", "d")
    ]
    async with Fleet(configs, text) as fleet, aiohttp.ClientSession() as session:
        yield fleet, session


async def ask(
    session: aiohttp.ClientSession, fleet: Fleet, server: int, **fields: Any
) -> tuple[int, dict[str, Any]]:
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": "mora " * 100}],
        "max_tokens": 4,
        **fields,
    }
    async with session.post(f"http://{fleet.servers[server].address}{CHAT}", json=body) as answer:
        return answer.status, await answer.json()


async def prefill(session: aiohttp.ClientSession, fleet: Fleet) -> dict[str, Any]:
    status, answer = await ask(session, fleet, 0, max_tokens=1, kv_transfer_params=PARAMS)
    assert status == 200
    params: dict[str, Any] = answer["kv_transfer_params"]
    return params


@pytest.mark.parametrize("time_scale", [0.0, 0.01])
async def test_decode_server_takes_what_the_prefill_server_computed(
    text: TokenizerText, time_scale: float
) -> None:
    async with two_servers(text, time_scale=time_scale) as (fleet, session):
        params = await prefill(session, fleet)
        status, answer = await ask(session, fleet, 1, kv_transfer_params=params)
        _status, alone = await ask(session, fleet, 0)

    n_prompt = answer["usage"]["prompt_tokens"]
    assert (params["do_remote_prefill"], params["do_remote_decode"], params["remote_port"]) == (
        True,
        False,
        fleet.servers[0].ports.http,
    )
    assert len(params["remote_block_ids"]) == -(-n_prompt // 16)
    assert (status, answer["usage"]["prompt_tokens_details"]["cached_tokens"]) == (200, n_prompt - 1)
    assert answer["kv_transfer_params"] is None
    assert answer["choices"] == alone["choices"]


async def test_streamed_answer_follows_a_pull(text: TokenizerText) -> None:
    async with two_servers(text) as (fleet, session):
        params = await prefill(session, fleet)
        body = {
            "model": MODEL_NAME,
            "messages": [{"role": "user", "content": "mora " * 100}],
            "stream": True,
            "kv_transfer_params": params,
        }
        async with session.post(f"http://{fleet.servers[1].address}{CHAT}", json=body) as answer:
            lines = [line async for line in answer.content if line.strip()]

    assert lines[-1] == b"data: [DONE]\n"
    assert len(lines) == 1 + 64 + 1


async def test_restarted_prefill_server_has_lost_the_blocks(text: TokenizerText) -> None:
    async with two_servers(text) as (fleet, session):
        params = await prefill(session, fleet)
        await fleet.servers[0].stop()
        await fleet.servers[0].start()
        status, answer = await ask(session, fleet, 1, kv_transfer_params=params)
        _status, streamed = await stream_errors(session, fleet, params)

    assert (status, answer["error"]["type"]) == (500, "InternalServerError")
    assert [event["error"]["code"] for event in streamed] == [500]


async def stream_errors(
    session: aiohttp.ClientSession, fleet: Fleet, params: dict[str, Any]
) -> tuple[int, list[dict[str, Any]]]:
    body = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "mora " * 100}], "stream": True}
    url = f"http://{fleet.servers[1].address}{CHAT}"
    async with session.post(url, json={**body, "kv_transfer_params": params}) as answer:
        lines = [line async for line in answer.content if line.startswith(b"data: {")]
        return answer.status, [json.loads(line.removeprefix(b"data: ")) for line in lines]


async def test_prefill_server_that_stops_during_a_pull_fails_it(text: TokenizerText) -> None:
    async with two_servers(text, bytes_per_s=1e-6, time_scale=0.01) as (fleet, session):
        params = await prefill(session, fleet)
        waiting = asyncio.create_task(ask(session, fleet, 1, kv_transfer_params=params))

        async def pulling() -> bool:
            async with session.get(fleet.metrics_urls[1]) as answer:
                return 'reason="deferred"} 1.0' in await answer.text()

        await until(pulling, what="the pull")
        await fleet.servers[0].stop()
        status, _answer = await waiting

    assert status == 500


def image(name: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"http://images/{name}"}}


async def test_encode_server_says_where_its_media_are_and_nobody_encodes_them_again(
    text: TokenizerText,
) -> None:
    encoded = EncodedMedia()
    configs = [
        ServerConfig(name="e", model=MODEL_NAME, time_scale=0.0, encoded=encoded, role=ENCODE),
        ServerConfig(name="d", model=MODEL_NAME, time_scale=0.0, encoded=encoded),
        ServerConfig(name="stuck", model=MODEL_NAME, time_scale=1.0, encoded=encoded, encode_s=1e6),
    ]
    content = [{"type": "text", "text": "Vis?"}, image("a"), image("b")]
    messages = [{"role": "user", "content": content}]
    async with Fleet(configs, text) as fleet, aiohttp.ClientSession() as session:
        _status, first = await ask(session, fleet, 0, messages=messages, max_tokens=1)
        answers = [await ask(session, fleet, server, messages=messages) for server in (1, 2)]

    assert len(first["ec_transfer_params"]) == 2
    assert first["usage"]["completion_tokens"] == 0
    assert [status for status, _answer in answers] == [200, 200]
    assert answers[0][1]["choices"] == answers[1][1]["choices"]
    assert answers[0][1]["ec_transfer_params"] is None


async def test_other_media_make_another_prompt(text: TokenizerText) -> None:
    config = ServerConfig(name="d", model=MODEL_NAME, time_scale=0.0)
    async with Fleet([config], text) as fleet, aiohttp.ClientSession() as session:
        cached = [
            (await ask(session, fleet, 0, messages=[{"role": "user", "content": [image(name)]}]))[1]["usage"]
            for name in ("a", "b", "a")
        ]

    tokens = [each["prompt_tokens_details"]["cached_tokens"] for each in cached]
    assert tokens[0] == 0
    assert tokens[1] < tokens[2] <= cached[2]["prompt_tokens"]


async def test_written_configuration_places_stages_on_servers_with_roles(
    text: TokenizerText, tmp_path: Path
) -> None:
    roles = parse_roles("prefill=1,decode=1,both=1,encode=1")
    file = tmp_path / "fleet.yaml"
    async with Fleet(server_configs(SimulateOptions(roles=roles)), text) as fleet:
        fleet.write_kvatlas_config(
            file,
            tokenizer=tmp_path,
            ext_proc="127.0.0.1:0",
            rest="127.0.0.1:0",
            sections=stage_sections(roles),
        )

    config = load_config(file)

    assert {each.name: dict(each.labels) for each in config.endpoints.static} == {
        "prefill-0": {"llm-d.ai/role": "prefill"},
        "decode-0": {"llm-d.ai/role": "decode"},
        "both-0": {"llm-d.ai/role": "prefill-decode"},
        "encode-0": {"llm-d.ai/role": "encode"},
    }
    assert (config.disaggregation.uncached_tokens, config.disaggregation.encode) == (512, True)
    assert stage_sections(()) == {}
