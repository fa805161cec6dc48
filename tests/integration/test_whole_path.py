"""Client -> real Envoy -> kvatlas -> simulated servers, whose events and metrics go back to kvatlas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig
from support.serve import ANY_PORTS, ENDS_AT_ONCE, GIVES_NOTICE, Served, serving
from support.waiting import until

Mode = Literal["duplex", "buffered"]
NAMES = ("a", "b", "c")
SYSTEM = "You answer questions about block caches, briefly and with an example. " * 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return folder


@dataclass
class WholePath:
    """Everything between a client and its response."""

    fleet: Fleet
    served: Served
    envoy: EnvoyProcess

    async def ask(self, path: str, body: dict[str, Any] | bytes) -> tuple[int, str, bytes]:
        """Send a request; return status, name of the server, and the whole response."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.served.session.post(
            self.envoy.gateway_url + path, data=data, headers={"content-type": "application/json"}
        ) as answer:
            return answer.status, answer.headers.get("x-served-by", ""), await answer.read()

    async def chat(self, *turns: str, stream: bool = False) -> tuple[str, int]:
        """Send a chat; return its server and the prompt tokens it had cached."""
        roles = ("system", "user", "assistant")
        messages = [
            {"role": roles[min(n, 1 + n % 2)], "content": text} for n, text in enumerate((SYSTEM, *turns))
        ]
        body: dict[str, Any] = {"model": MODEL_NAME, "messages": messages, "max_tokens": 4, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        status, server, answer = await self.ask("/v1/chat/completions", body)
        assert status == 200, answer
        if stream:
            lines = [line[6:] for line in answer.decode().splitlines() if line.startswith("data: {")]
            answer = next(line for line in lines if '"usage":{' in line.replace(" ", "")).encode()
        details: dict[str, int] | None = json.loads(answer)["usage"]["prompt_tokens_details"]
        return server, details.get("cached_tokens", 0) if details else 0

    async def knows(self, server: str, n_blocks: int) -> None:
        """Wait until kvatlas has at least so many GPU blocks of a server in its index."""

        async def does() -> bool:
            row = await self.served.get(f"/v1/endpoints/{server}")
            return bool(row["tiers"][0]["residencies"] >= n_blocks)

        await until(does, what=f"{n_blocks} blocks of {server} in the index")

    async def is_idle(self, server: str) -> None:
        """Wait until kvatlas has read that the server is idle."""

        async def idle() -> bool:
            load = (await self.served.get(f"/v1/endpoints/{server}"))["load"]
            return bool(load and not load["running"] and not load["kvUtilization"])

        await until(idle, what=f"an idle {server}")


@asynccontextmanager
async def whole_path(
    model: Path, folder: Path, mode: Mode, *, ends: Mapping[str, str] = ENDS_AT_ONCE
) -> AsyncGenerator[WholePath]:
    configs = [
        ServerConfig(name=name, model=MODEL_NAME, gpu_blocks=8192, cpu_blocks=8192, time_scale=0.01)
        for name in NAMES
    ]
    async with Fleet(configs, TokenizerText(model)) as fleet:
        static = [
            {
                "name": server.config.name,
                "address": server.address,
                "events": server.events_address,
                "replay": server.replay_address,
                "metrics": f"http://{server.address}/metrics",
            }
            for server in fleet.servers
        ]
        config: dict[str, Any] = {
            "model": {"names": [MODEL_NAME], "tokenizer": str(model)},
            "endpoints": {"static": static},
        }
        config["server"] = {**ANY_PORTS, **ends}
        async with serving(config, folder) as served:
            envoy_config = gateway_config(
                mode,
                gateway=("127.0.0.1", 0),
                admin=("127.0.0.1", 0),
                picker=("127.0.0.1", served.ports["extProc"]),
                servers=fleet.addresses,
            )
            async with EnvoyProcess(envoy_config, binary=find_envoy()) as envoy:
                path = WholePath(fleet, served, envoy)
                await until(lambda: picked_once(path), what="Envoy's first use of kvatlas")
                yield path


async def picked_once(path: WholePath) -> bool:
    """Return whether a request went through kvatlas; Envoy bypasses it until its health check passes."""
    await path.ask("/v1/completions", {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 1})
    return "kvatlas_picks_total{" in await path.served.metrics()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["duplex", "buffered"])
async def test_requests_follow_the_cache(mode: Mode, model: Path, tmp_path: Path) -> None:
    async with whole_path(model, tmp_path, mode) as path:
        first, cached = await path.chat("What is a block?")
        assert cached == 0
        await path.knows(first, 10)
        scores = await path.served.post(
            "/v1/score", {"model": MODEL_NAME, "messages": chat_messages("Another one?")}
        )
        assert scores["picked"] == [first]
        for stream in (False, True, False):
            server, cached = await path.chat("Another one?", stream=stream)
            assert server == first
            assert cached > 100
        answers = [
            await path.ask(
                "/v1/completions", {"model": MODEL_NAME, "prompt": SYSTEM, "max_tokens": 2, "stream": s}
            )
            for s in (False, True)
        ]
        assert [status for status, _, _ in answers] == [200, 200]


def chat_messages(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]


@pytest.mark.slow
async def test_megabyte_prompt_goes_through_and_its_blocks_are_found_again(
    model: Path, tmp_path: Path
) -> None:
    async with whole_path(model, tmp_path, "duplex") as path:
        tokens = [n % 400 for n in range(100_000)]
        body = {"model": MODEL_NAME, "prompt": tokens, "max_tokens": 1}
        padding = {"user": "x" * (1_000_000 - len(json.dumps(body)))}
        status, server, _ = await path.ask("/v1/completions", body | padding)
        assert status == 200
        await path.knows(server, 6000)
        answer = await path.served.post("/query", {"model": MODEL_NAME, "token_ids": tokens})
        assert answer["default"][server]["longest_matched"] >= 99_000
        await path.is_idle(server)
        assert (await path.ask("/v1/completions", body | padding))[1] == server


@pytest.mark.slow
async def test_bad_json_is_400_and_the_next_request_is_served(model: Path, tmp_path: Path) -> None:
    async with whole_path(model, tmp_path, "duplex") as path:
        status, server, text = await path.ask("/v1/chat/completions", b'{"model": ')
        assert (status, server) == (400, "")
        assert text.startswith(b"inference error: BadRequest - ")
        assert (await path.chat("Hello?"))[0] in NAMES


@pytest.mark.slow
async def test_no_endpoint_is_503(tmp_path: Path) -> None:
    async with serving({}, tmp_path) as served:
        config = gateway_config(
            "duplex",
            gateway=("127.0.0.1", 0),
            admin=("127.0.0.1", 0),
            picker=("127.0.0.1", served.ports["extProc"]),
            servers=[("127.0.0.1", 1)],
        )
        async with EnvoyProcess(config, binary=find_envoy()) as envoy:
            body = json.dumps({"model": MODEL_NAME, "prompt": "hello"})

            async def refused() -> bool:
                async with served.session.post(envoy.gateway_url + "/v1/completions", data=body) as answer:
                    return (
                        answer.status == 503 and b"failed to find endpoint candidates" in await answer.read()
                    )

            await until(refused, what="503 from kvatlas")


@pytest.mark.slow
async def test_traffic_continues_by_fallback_when_kvatlas_is_stopped(model: Path, tmp_path: Path) -> None:
    async with whole_path(model, tmp_path, "duplex", ends=GIVES_NOTICE) as path:
        first, _ = await path.chat("What is a block?")
        path.served.process.terminate()
        await path.served.process.wait()

        async def served() -> bool:
            status, _, _ = await path.ask(
                "/v1/completions", {"model": MODEL_NAME, "prompt": "hello", "max_tokens": 1}
            )
            return status == 200

        await until(served, what="an answer without kvatlas")
        servers = {(await path.chat("Still there?"))[0] for _ in range(6)}
        assert servers > {first}, "round robin reaches every server"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["duplex", "buffered"])
async def test_stopping_kvatlas_under_load_fails_no_request(mode: Mode, model: Path, tmp_path: Path) -> None:
    async with whole_path(model, tmp_path, mode, ends=GIVES_NOTICE) as path:
        body = {"model": MODEL_NAME, "prompt": "hello there", "max_tokens": 1}
        statuses: list[int] = []

        async def keep_asking() -> None:
            while path.served.process.returncode is None:
                statuses.append((await path.ask("/v1/completions", body))[0])

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await until(lambda: len(statuses) >= 20, what="load")
        path.served.process.terminate()
        await path.served.process.wait()
        await asyncio.gather(*asking)
        statuses += [(await path.ask("/v1/completions", body))[0] for _ in range(5)]
    assert set(statuses) == {200}


@pytest.mark.slow
async def test_server_that_dies_is_avoided_while_its_load_cannot_be_read(model: Path, tmp_path: Path) -> None:
    async with whole_path(model, tmp_path, "duplex") as path:
        first, _ = await path.chat("What is a block?")
        await path.knows(first, 10)
        await next(server for server in path.fleet.servers if server.config.name == first).stop()

        async def unseen() -> bool:
            return (await path.served.get(f"/v1/endpoints/{first}"))["load"] is None

        await until(unseen, what="a stale load")
        for _ in range(5):
            try:
                server, _ = await path.chat("What is a block?")
            except aiohttp.ClientError as error:
                pytest.fail(f"a request failed: {error}")
            assert server != first
