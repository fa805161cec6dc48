"""A kvatlas without a tokenizer, which gets token ids from the servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig
from support.serve import Served, serving
from support.waiting import until

MESSAGES = [{"role": "user", "content": "Tell me where the blocks of a long prompt are. " * 12}]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TokenizerText:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return TokenizerText(folder)


@asynccontextmanager
async def served_by(text: TokenizerText, folder: Path, **remote: Any) -> AsyncGenerator[tuple[Fleet, Served]]:
    """Run two servers and a kvatlas without their tokenizer."""
    configs = [ServerConfig(name=name, model=MODEL_NAME, time_scale=0.01) for name in "ab"]
    async with Fleet(configs, text) as fleet:
        static = [
            {
                "name": server.config.name,
                "address": server.address,
                "events": server.events_address,
                "replay": server.replay_address,
            }
            for server in fleet.servers
        ]
        config = {
            "model": {"names": [MODEL_NAME], "remoteTokenizer": {"timeout": "5s", **remote}},
            "endpoints": {"static": static},
        }
        async with serving(config, folder) as served:
            yield fleet, served


async def score(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = await served.post("/v1/score", {"model": MODEL_NAME, "messages": MESSAGES})
    return found


@pytest.mark.slow
@pytest.mark.parametrize("api", ["render", "tokenize"])
async def test_cached_prompt_is_found_when_the_servers_return_its_ids(
    text: TokenizerText, tmp_path: Path, api: str
) -> None:
    async with served_by(text, tmp_path, url="endpoints", api=api) as (fleet, served):
        body = {"model": MODEL_NAME, "messages": MESSAGES, "max_tokens": 1}
        url = f"http://{fleet.servers[1].address}/v1/chat/completions"
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as answer:
            n_tokens = (await answer.json())["usage"]["prompt_tokens"]

        async def is_known() -> bool:
            prefix = (await score(served))["endpoints"][1]["prefix"]
            return prefix is not None and prefix["usableTokens"] > n_tokens // 2

        await until(is_known, what="the prompt's blocks in the index")
        answered = await score(served)
        metrics = await served.metrics()
    assert (answered["tokens"], answered["noPrefixReason"]) == (n_tokens, None)
    assert answered["picked"] == ["b"]
    assert 'kvatlas_remote_tokenizations_total{outcome="answered"} 1.0' in metrics
    assert "kvatlas_remote_tokenizer_servers_open 0.0" in metrics


@pytest.mark.slow
async def test_requests_are_routed_without_prefix_when_no_server_returns_ids(
    text: TokenizerText, tmp_path: Path
) -> None:
    async with served_by(text, tmp_path, url="http://127.0.0.1:1", failures=2) as (_, served):
        answers = [await score(served) for _ in range(3)]
        await served.until_metric("kvatlas_remote_tokenizer_servers_open 1.0")
        metrics = await served.metrics()
    known = [
        (answer["noPrefixReason"], answer["tokensEstimated"], answer["tokens"] > 0) for answer in answers
    ]
    assert known == [("no_tokenizer", True, True)] * 3
    assert 'kvatlas_remote_tokenizations_total{outcome="unreachable"} 2.0' in metrics
    assert 'kvatlas_remote_tokenizations_total{outcome="unavailable"} 1.0' in metrics
    assert sum("returns no token ids" in line for line in served.log) == 1
