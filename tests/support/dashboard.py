"""A whole installation for the dashboard: simulated servers, kvatlas, Envoy, and traffic through them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig
from kvatlas.sim.workload import WorkloadSpec, run_workload
from support.serve import Served, serving
from support.waiting import until

N_SERVERS = 4
BLOCK_SIZE, GPU_BLOCKS, CPU_BLOCKS = 16, 512, 1600
ANY_PORT = ("127.0.0.1", 0)
WORKLOAD = WorkloadSpec(
    groups=8,
    conversations=3,
    turns=3,
    system_words=500,
    user_words=40,
    reply_tokens=12,
    concurrency=6,
    seed=1,
)
TIERS = [
    {"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": 20 * GPU_BLOCKS},
    {"name": "cpu", "media": ["CPU"], "lruCapacityPerServer": CPU_BLOCKS},
]
"""The first bound is wrong, so that the doctor finds it."""


@dataclass(frozen=True)
class Question:
    """A chat; servers hold different parts of its prompt."""

    texts: tuple[str, ...]

    @property
    def messages(self) -> list[dict[str, str]]:
        return chat_messages(*self.texts)


@dataclass
class Installation:
    """Servers, kvatlas and gateway of one installation."""

    served: Served
    gateway_url: str
    fleet: Fleet
    rounds: Iterator[int] = field(default_factory=count)
    """Counts the rounds of traffic."""

    @property
    def url(self) -> str:
        """Return the address of the REST listener."""
        return f"http://127.0.0.1:{self.served.ports['rest']}"

    async def chat(self, *texts: str) -> str:
        """Send a chat through the gateway; return the endpoint that answered."""
        return await self._post(f"{self.gateway_url}/v1/chat/completions", messages=chat_messages(*texts))

    async def chat_with(self, name: str, *texts: str) -> None:
        """Send a chat to one server, past the gateway."""
        await self._post(f"{self._server(name)}/v1/chat/completions", messages=chat_messages(*texts))

    async def refill(self, name: str) -> None:
        """Send one server so many other prompts that its GPU memory keeps nothing from before."""
        for step in (3, 7):
            tokens = [(step * n) % 401 for n in range(GPU_BLOCKS * BLOCK_SIZE // 2 + 1000)]
            await self._post(f"{self._server(name)}/v1/completions", prompt=tokens)

    @asynccontextmanager
    async def busy(self, name: str) -> AsyncGenerator[None]:
        """Keep one server busy with a long response that kvatlas has noticed."""
        prompt = [(5 * n) % 401 for n in range(GPU_BLOCKS * BLOCK_SIZE // 2)]
        long = self._post(f"{self._server(name)}/v1/completions", prompt=prompt, max_tokens=3000)
        task = asyncio.create_task(long)
        try:
            await until(lambda: self._is_computing(name), what=f"load of {name}")
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def would_take(self, name: str, *texts: str) -> bool:
        """Return whether a chat would go to an endpoint."""
        body = {"model": MODEL_NAME, "messages": chat_messages(*texts)}
        return bool((await self.served.post("/v1/score", body))["picked"] == [name])

    async def prefixes(self, question: Question) -> dict[str, dict[str, Any]]:
        """Return endpoint -> the prefix that the API reports for the prompt."""
        score = await self.served.post("/v1/score", {"model": MODEL_NAME, "messages": question.messages})
        return {each["name"]: each["prefix"] for each in score["endpoints"]}

    async def decisions_changed_by(self, weights: dict[str, float]) -> tuple[int, int]:
        """Return the number of kept decisions and how many these weights change, from the terms of each."""
        kept = (await self.served.get("/v1/decisions?limit=1000"))["decisions"]
        n_changed = 0
        for each in kept:
            decision = await self.served.get(f"/v1/decisions/{each['requestId']}")
            totals = {
                endpoint["name"]: sum(
                    weights.get(term["name"], term["weight"]) * term["score"] for term in endpoint["scores"]
                )
                for endpoint in decision["endpoints"]
            }
            n_changed += totals[decision["picked"][0]] < max(totals.values()) - 1e-9
        return len(kept), n_changed

    async def reads_again(self) -> bool:
        """Return whether a server got a new chat a second time although it was busy.

        Envoy may choose without kvatlas if this machine is busy; only then it did not.
        """
        known = (f"You have read this {next(self.rounds)} times before. " * 50, "Hello")
        answered = await self.chat(*known)
        await until(
            lambda: self.would_take(answered, *known), what=f"a chat that {answered} would take for its cache"
        )
        async with self.busy(answered):
            again = await self.chat(*known)
        (newest,) = (await self.served.get("/v1/decisions?limit=1"))["decisions"]
        assert again == answered or newest["picked"] != [again], newest
        return again == answered

    async def is_idle(self) -> bool:
        """Return whether no endpoint has a load and the newest decision has been audited."""
        newest = (await self.served.get("/v1/decisions?limit=1"))["decisions"][0]
        audited = (await self.served.get(f"/v1/decisions/{newest['requestId']}"))["audited"]
        endpoints = (await self.served.get("/v1/endpoints"))["endpoints"]
        return audited is not None and all(each["load"]["kvUtilization"] == 0 for each in endpoints)

    async def _is_computing(self, name: str) -> bool:
        load = (await self.served.get(f"/v1/endpoints/{name}"))["load"]
        return bool(load["kvUtilization"] > 0 and load["running"] > 0 and load["waiting"] == 0)

    def _server(self, name: str) -> str:
        return next(f"http://{server.address}" for server in self.fleet.servers if server.config.name == name)

    async def _post(self, url: str, **body: Any) -> str:
        data = json.dumps({"model": MODEL_NAME, "max_tokens": 4} | body).encode()
        headers = {"content-type": "application/json"}
        async with self.served.session.post(url, data=data, headers=headers) as response:
            assert response.status == 200, await response.text()
            await response.read()
            return response.headers["x-served-by"]


def chat_messages(*texts: str) -> list[dict[str, str]]:
    """Return a system prompt, then user and assistant messages in turn."""
    roles = ("system", "user", "assistant")
    return [{"role": roles[min(n, 1 + (n - 1) % 2)], "content": text} for n, text in enumerate(texts)]


@asynccontextmanager
async def installation(folder: Path, *flags: str, **sections: Any) -> AsyncGenerator[Installation]:
    """Run a fleet of four servers behind kvatlas and Envoy."""
    write_demo_model(folder / "model")
    configs = [
        ServerConfig(
            name=f"vllm-{number}",
            model=MODEL_NAME,
            block_size=BLOCK_SIZE,
            gpu_blocks=GPU_BLOCKS,
            cpu_blocks=CPU_BLOCKS,
            time_scale=0.05,
        )
        for number in range(N_SERVERS)
    ]
    async with Fleet(configs, TokenizerText(folder / "model")) as fleet:
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
        config = {
            "model": {"names": [MODEL_NAME], "tokenizer": str(folder / "model")},
            "endpoints": {"static": static},
            "tiers": TIERS,
        }
        async with serving(config | sections, folder, *flags) as served:
            envoy = gateway_config(
                "duplex",
                gateway=ANY_PORT,
                admin=ANY_PORT,
                picker=("127.0.0.1", served.ports["extProc"]),
                servers=fleet.addresses,
            )
            async with EnvoyProcess(envoy, binary=find_envoy()) as running:
                yield Installation(served, running.gateway_url, fleet)


async def send_traffic(installed: Installation) -> None:
    """Send traffic to every server, whose last chat goes to a busy one for its cache; wait until all is idle."""

    async def picked_once() -> bool:
        await installed.chat("You are brief.", "Hello")
        return "kvatlas_picks_total{" in await installed.served.metrics()

    await until(picked_once, what="a first pick through Envoy")
    result = await run_workload(installed.gateway_url, MODEL_NAME, WORKLOAD)
    assert not result.errors, result.errors[:3]
    number = next(installed.rounds)
    for name in (
        each.config.name for each in installed.fleet.servers
    ):  # chance may have left one without a pick
        chat = (f"You are the assistant {number} of {name}. " * 50, "Hello")
        await installed.chat_with(name, *chat)
        await until(partial(installed.would_take, name, *chat), what=f"a chat that {name} would take")
        assert await installed.chat(*chat) == name
    await until(installed.reads_again, what="a chat that goes to a busy server for its cache")
    await until(installed.is_idle, what="an idle fleet")
