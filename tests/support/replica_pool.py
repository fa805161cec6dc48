"""Three replicas behind a real Envoy, in front of simulated servers, and requests through all of it.

The rate is small for the machine that runs all of it; KVATLAS_REPLICA_RATE sets another, in requests per second.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig
from support.chats import PHASE_S, RATE, Tally, send_chats
from support.envoy_gateway import ANY_PORT, pickers_in_use
from support.replica_figures import Figures, Phase, record
from support.replica_sections import Sections, mesh, on_cluster, on_server
from support.serve import ANY_PORTS, ENDS_AT_ONCE, Served, serving
from support.valkey_process import Server, cluster, one
from support.waiting import until

NAMES = ("one", "two", "three")
N_SERVERS = 4
N_HELD, HELD_TOKENS = 12, 1500
LEAST_REACHED = 0.95
WARM_S = min(PHASE_S, 10.0)


class Pool:
    """Replicas, and what stands around them."""

    def __init__(
        self, folder: Path, sections: Sections, fleet: Fleet, *, ends: Mapping[str, str] = ENDS_AT_ONCE
    ) -> None:
        self._ends_with = ends
        self.folder, self.sections, self.fleet = folder, sections, fleet
        self.replicas: dict[str, Served] = {}
        self.gone: set[str] = set()
        self.envoy: EnvoyProcess | None = None
        self.client: aiohttp.ClientSession | None = None
        self._stack = AsyncExitStack()
        self._ends: dict[str, AsyncExitStack] = {}
        self._rng = random.Random(1)

    async def start(
        self,
        name: str,
        ext_proc_port: int = 0,
        *,
        killed: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Served:
        """Start a replica; one that will be killed says so. `environment` adds variables."""
        own = self.folder / name
        own.mkdir(exist_ok=True)
        static = [
            {
                "name": each.config.name,
                "address": each.address,
                "events": each.events_address,
                "replay": each.replay_address,
                "metrics": f"http://{each.address}/metrics",
            }
            for each in self.fleet.servers
        ]
        config = {
            "server": ANY_PORTS | {"extProc": f"127.0.0.1:{ext_proc_port}", **self._ends_with},
            "endpoints": {"static": static},
            "model": {"names": [MODEL_NAME], "tokenizer": str(self.folder / "model")},
            "policy": "latency",
            "replicas": self.sections[name],
        }
        stack = self._ends[name] = AsyncExitStack()
        killed_by = signal.SIGKILL if killed else None
        served = await stack.enter_async_context(
            serving(config, own, killed_by=killed_by, environment=environment)
        )
        self.replicas[name] = served
        return served

    async def end(self, name: str) -> None:
        """End a replica."""
        await self._ends.pop(name).aclose()

    async def close(self) -> None:
        for name in tuple(self._ends):
            await self.end(name)

    async def in_use(self, count: int) -> None:
        assert self.envoy is not None
        assert self.client is not None
        await pickers_in_use(self.envoy, self.client, count)

    async def traffic(self, seconds: float) -> Tally:
        """Send chats at the rate for so long."""
        assert self.client is not None
        assert self.envoy is not None
        before = await self.envoy.n_without_picker()
        tally = await send_chats(self.client, self._rng, seconds)
        tally.undecided = await self.envoy.n_without_picker() - before
        return tally

    async def until_whole(self, n_live: int) -> None:
        """Wait until each replica that runs hears `n_live` others and all count the same requests in flight: all, then none."""
        async with self.holding():
            await self.until_counted(n_live, N_HELD)
        await self.until_counted(n_live, 0)

    @asynccontextmanager
    async def holding(self) -> AsyncGenerator[None]:
        """Have `N_HELD` requests in flight."""
        asking = [asyncio.create_task(self._ask_on()) for _ in range(N_HELD)]
        try:
            yield
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def until_counted(self, n_live: int, n_requests: int) -> None:
        """Wait until each replica that runs hears so many others, and counts so many requests in flight of all."""

        async def is_counted(served: Served) -> bool:
            seen = await seen_by(served)
            return (seen.n_live, seen.own + seen.others) == (n_live, n_requests)

        for name, served in self.replicas.items():
            if name not in self.gone:
                what = f"{name} with {n_live} live siblings and {n_requests} requests in flight"
                await until(partial(is_counted, served), what=what)

    async def _ask_on(self) -> None:
        """Have one long request in flight after the other."""
        assert self.client is not None
        body = {"model": MODEL_NAME, "prompt": [1, 2, 3], "max_tokens": HELD_TOKENS}
        while True:
            async with self.client.post("/v1/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()


@dataclass(frozen=True)
class Seen:
    """What a replica sees: live siblings, and requests in flight of its own and of the others."""

    n_live: int
    own: int
    others: int


async def seen_by(served: Served) -> Seen:
    """Return what a replica sees now."""
    lines = (await served.metrics()).splitlines()

    def total(series: str) -> int:
        return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series)))

    return Seen(
        total('kvatlas_replica_siblings{state="live"}'),
        total("kvatlas_in_flight_requests{"),
        total("kvatlas_replica_in_flight_requests "),
    )


@asynccontextmanager
async def pool(
    folder: Path,
    sections: Sections,
    *,
    mortal: str = "",
    environments: Mapping[str, Mapping[str, str]] | None = None,
    ends: Mapping[str, str] = ENDS_AT_ONCE,
) -> AsyncGenerator[Pool]:
    """Run three replicas behind Envoy, of which one may be killed; `environments` adds variables to some."""
    write_demo_model(folder / "model")
    servers = [
        ServerConfig(name=f"s{n}", model=MODEL_NAME, gpu_blocks=400, time_scale=0.2) for n in range(N_SERVERS)
    ]
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(servers, TokenizerText(folder / "model")))
        made = Pool(folder, sections, fleet, ends=ends)
        stack.push_async_callback(made.close)
        for name in sections:
            environment = (environments or {}).get(name)
            await made.start(name, killed=name == mortal, environment=environment)
        ports = [served.ports["extProc"] for served in made.replicas.values()]
        addresses = [each.address.rpartition(":") for each in fleet.servers]
        config = gateway_config(
            "buffered",
            gateway=ANY_PORT,
            admin=ANY_PORT,
            picker=("127.0.0.1", ports[0]),
            servers=[(host, int(port)) for host, _, port in addresses],
        )
        kvatlas = next(each for each in config["static_resources"]["clusters"] if each["name"] == "kvatlas")
        kvatlas["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
            for port in ports
        ]
        made.envoy = await stack.enter_async_context(EnvoyProcess(config, binary=find_envoy()))
        connector = aiohttp.TCPConnector(limit=0)
        made.client = await stack.enter_async_context(
            aiohttp.ClientSession(made.envoy.gateway_url, connector=connector)
        )
        await made.in_use(len(sections))
        await made.until_whole(len(sections) - 1)
        yield made


@asynccontextmanager
async def sections_of(transport: str, folder: Path) -> AsyncGenerator[tuple[Sections, list[Server]]]:
    """Yield the sections `replicas` of three replicas, and the servers between them."""
    if transport == "mesh":
        sections, secret = mesh(folder, *NAMES), folder / "secret"
        secret.write_text("a secret of the replicas, of 32 bytes or more")
        for each in sections.values():
            each["mesh"]["secretFile"] = str(secret)
        yield sections, []
    elif transport == "server":
        async with one(folder) as server:
            yield on_server(server.address, *NAMES), [server]
    else:
        async with cluster(folder) as servers:
            yield on_cluster([each.address for each in servers], *NAMES), servers


def transports(*here: str, among: Sequence[str] = ("mesh", "server", "cluster")) -> pytest.MarkDecorator:
    """Run a test with these transports, and with all others if a rate is given."""
    long = pytest.mark.skipif(
        "KVATLAS_REPLICA_RATE" not in os.environ, reason="takes half a minute: make replica-check"
    )
    cases = [each if each in here else pytest.param(each, marks=long) for each in among]
    return pytest.mark.parametrize("transport", cases)


async def judge(
    at: Pool, transport: str, hurt: str, before: Tally, during: Tally, after: Tally, *, n_live: int = 2
) -> None:
    """Wait until all replicas count alike, record the figures, and assert that nothing failed and the caches are used as before.

    The hit rate may be one point lower, beyond what chance makes of so few requests. It says nothing if the machine cannot send
    at the rate that was asked for, since requests then wait for each other.
    """
    await at.until_whole(n_live)
    left = [await seen_by(each) for name, each in at.replicas.items() if name not in at.gone]
    record(
        Figures(
            transport=transport,
            hurt=hurt,
            phases=[Phase.of(each) for each in (before, during, after)],
            counted=N_HELD,  # by each replica, as `until_whole` has waited for
            left=max(each.own + each.others for each in left),
        )
    )
    assert (before.failed, during.failed, after.failed) == (0, 0, 0)
    reached = len(before.statuses) / before.seconds
    if "KVATLAS_REPLICA_RATE" in os.environ:
        assert reached >= LEAST_REACHED * RATE, (
            f"this machine carries {reached:.0f} requests/s: take REPLICA_RATE"
        )
    rate, n = before.hit_rate, min(len(before.statuses), len(after.statuses))
    chance = 3 * math.sqrt(2 * rate * (1 - rate) / n)
    assert after.hit_rate >= rate - max(0.01, chance)
