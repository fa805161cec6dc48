"""Client -> real Envoy -> kvatlas -> sidecars beside decode servers -> prefill and encode servers, all simulated but the first two."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from kvatlas.sim.demo_model import MODEL_NAME
from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.held_port import HeldPort
from kvatlas.sim.kv_exchange import KvExchange
from kvatlas.sim.kv_network import KvNetwork, NetworkSpec
from kvatlas.sim.media import EncodedMedia
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig, SimServer
from kvatlas.sim.service_times import ServiceTimes
from support.serve import Served, serving
from support.sidecar.server import Start
from support.waiting import until

HOST, ANY_HOST = "127.0.0.1", "0.0.0.0"  # the reference sidecar listens on every address
UNCACHED_TOKENS = 64
"""From so many uncached tokens on a prompt is computed on a prefill server."""

NEVER_S = 1e9
"""Time that servers take to encode an item which the encode server did not."""

ROLES = {
    "prefill-0": "prefill",
    "prefill-1": "prefill",
    "decode-0": "decode",
    "decode-1": "decode",
    "encode-0": "encode",
}
"""Server -> role."""

_TIME_SCALE = 0.01
_TOKENS_PER_STEP = 8192
_STUCK = ServiceTimes(attention_s_per_pair=NEVER_S)
"""With a token in a step the first one, which has none before it, is quick; so the engine is seen to work. The next never ends."""

_RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)
_PROMPT_TOKENS = re.compile(r"^vllm:prompt_tokens_total\{.*\} (\S+)$", re.MULTILINE)


class Answered(NamedTuple):
    """An answer of the gateway, and who made it.

    Attributes:
        status: HTTP status.
        body: JSON, or text if it is none.
        server: which answered.
        worked: servers whose engines had the prompt, in alphabetic order.
        chosen: servers by stage, as kvatlas's decision has them; empty if there is none.
    """

    status: int
    body: Any
    server: str
    worked: tuple[str, ...]
    chosen: dict[str, list[str]]


@dataclass
class StagePath:
    """Everything between a client and its answer."""

    fleet: Fleet
    served: Served
    envoy: EnvoyProcess

    async def prefilling(self) -> SimServer:
        """Wait until a prefill server works, and return it."""
        found: list[SimServer] = []

        async def works() -> bool:
            running = await self._sums(_RUNNING)
            found[:] = [
                server
                for server in self.fleet.servers
                if server.config.role == "prefill" and running.get(server.config.name)
            ]
            return bool(found)

        await until(works, what="a prefill server at work")
        return found[0]

    async def ask(self, path: str, fields: dict[str, Any], headers: dict[str, str] | None = None) -> Answered:
        """Send a request of the fleet's model, alone, and say who worked on it."""
        before = await self._sums(_PROMPT_TOKENS)
        body = {"model": MODEL_NAME, "max_tokens": 4, **fields}
        async with self.served.session.post(
            self.envoy.gateway_url + path, json=body, headers=headers
        ) as answer:
            text = await answer.text()
        after = await self._sums(_PROMPT_TOKENS)
        chosen: dict[str, list[str]] = {}
        decisions = (await self.served.get("/v1/decisions"))["decisions"]
        if decisions:
            chosen = {**decisions[0]["stages"], "decode": decisions[0]["picked"]}
        return Answered(
            answer.status,
            json.loads(text) if text.startswith("{") else text,
            answer.headers.get("x-served-by", ""),
            tuple(sorted(name for name in after if after[name] > before.get(name, 0))),
            chosen,
        )

    async def in_flight(self) -> dict[str, int]:
        """Return server -> requests that kvatlas has booked on it, of those that have any."""
        rows = (await self.served.get("/v1/endpoints"))["endpoints"]
        loads = {row["name"]: row["load"]["inFlightRequests"] if row["load"] else 0 for row in rows}
        return {name: n for name, n in loads.items() if n}

    async def until_in_flight(self, *names: str) -> None:
        """Wait until exactly these servers have bookings."""

        async def are() -> bool:
            return {*await self.in_flight()} == {*names}

        await until(are, what=f"bookings of {', '.join(names) or 'no server'}")

    async def _sums(self, series: re.Pattern[str]) -> dict[str, float]:
        """Return server -> sum of a series of its engine, of the servers that run."""
        found: dict[str, float] = {}
        for server in self.fleet.servers:
            with contextlib.suppress(aiohttp.ClientConnectionError):
                async with self.served.session.get(f"http://{server.address}/metrics") as answer:
                    found[server.config.name] = sum(map(float, series.findall(await answer.text())))
        return found


async def restart(server: SimServer) -> None:
    """Start a server that was stopped, and that prefills now."""
    server.config = dataclasses.replace(
        server.config, times=ServiceTimes(), max_num_batched_tokens=_TOKENS_PER_STEP
    )
    await server.start()


@contextlib.asynccontextmanager
async def stage_path(
    model: Path, folder: Path, start: Start, *, never_prefills: bool = False
) -> AsyncGenerator[StagePath]:
    """Run all of it, each decode server behind a sidecar of `start`, which retries a prefill leg for seconds.

    If it `never_prefills`, prefill servers do not come to an end until they are restarted.
    """
    exchange = KvExchange(KvNetwork(NetworkSpec(), {}), bytes_per_token=1.0)
    encoded = EncodedMedia()
    configs = [
        ServerConfig(
            name=name,
            model=MODEL_NAME,
            role=role,
            gpu_blocks=4096,
            time_scale=_TIME_SCALE,
            times=_STUCK if never_prefills and role == "prefill" else ServiceTimes(),
            max_num_batched_tokens=1 if never_prefills and role == "prefill" else _TOKENS_PER_STEP,
            exchange=exchange,
            encoded=encoded,
            encode_s=0.0 if role == "encode" else NEVER_S,
        )
        for name, role in ROLES.items()
    ]
    async with contextlib.AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(configs, TokenizerText(model)))
        addresses: dict[str, tuple[str, int]] = {}
        for server in fleet.servers:
            port = server.ports.http
            if server.config.role == "decode":
                port = await _behind_sidecar(stack, start, port)
            addresses[server.config.name] = (HOST, port)
        static = [
            {
                "name": server.config.name,
                "address": f"{HOST}:{addresses[server.config.name][1]}",
                "labels": {"llm-d.ai/role": server.config.role},
                "events": server.events_address,
                "replay": server.replay_address,
                "metrics": f"http://{server.address}/metrics",
            }
            for server in fleet.servers
        ]
        config = {
            "model": {"names": [MODEL_NAME], "tokenizer": str(model)},
            "endpoints": {"static": static},
            "disaggregation": {"uncachedTokens": UNCACHED_TOKENS, "encode": True},
        }
        served = await stack.enter_async_context(serving(config, folder))
        envoy_config = gateway_config(
            "duplex",
            gateway=(HOST, 0),
            admin=(HOST, 0),
            picker=(HOST, served.ports["extProc"]),
            servers=[addresses[name] for name, role in ROLES.items() if role == "decode"],
        )
        envoy = await stack.enter_async_context(EnvoyProcess(envoy_config, binary=find_envoy()))
        path = StagePath(fleet, served, envoy)
        await until(envoy.is_picker_healthy, what="Envoy's first use of kvatlas")
        yield path


async def _behind_sidecar(stack: contextlib.AsyncExitStack, start: Start, engine_port: int) -> int:
    """Start a sidecar before an engine, and return its port."""
    held = HeldPort(ANY_HOST)
    flags = [
        f"--port={held.number}",
        f"--model-server-port={engine_port}",
        "--secure-proxy=false",
        "--ec-connector=ec-nixl",
        "--prefill-max-retries=60",
        "--prefill-retry-backoff=50ms",
    ]
    await stack.enter_async_context(start(flags, {}, held.number))
    stack.callback(lambda: held)  # keeps the port until the end
    return held.number
