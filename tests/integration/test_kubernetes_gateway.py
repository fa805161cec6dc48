"""A small cluster on one machine: API server, pods with simulated engines, the chart's Envoy, and kvatlas.

Pods come, go and are replaced under traffic. No request fails, and none reaches a pod after kvatlas saw its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import signal
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import yaml

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.envoy import EnvoyProcess, find_envoy
from kvatlas.sim.held_port import HeldPort
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import Ports, ServerConfig, SimServer
from support.api_server import ApiServerDouble
from support.envoy_gateway import pickers_in_use
from support.manifests import helm, only
from support.serve import Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

PODS = "/api/v1/namespaces/ns/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
PER_SECOND = 200
BLOCKS_OF_PROMPT = 8
N_ROUNDS = 2


@dataclass
class Response:
    """One response: when its request was sent, its status and its server."""

    sent_at: float
    status: int
    server: str


@dataclass
class Cluster:
    """The API server and the pods."""

    api: ApiServerDouble
    text: TokenizerText
    held: tuple[HeldPort, HeldPort, HeldPort] = field(
        default_factory=lambda: (HeldPort("0.0.0.0"), HeldPort("0.0.0.0"), HeldPort("0.0.0.0"))
    )
    """The ports of every pod, free on every address."""
    servers: dict[str, SimServer] = field(default_factory=dict[str, SimServer])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    n_lives: Counter[str] = field(default_factory=Counter[str])

    @property
    def ports(self) -> Ports:
        return Ports(*(port.number for port in self.held))

    async def run(self, name: str, number: int, *, ready: bool = True) -> None:
        """Start a pod on the address 127.0.0.`number`; its engine names itself `NAME.LIFE` in every response."""
        self.n_lives[name] += 1
        config = ServerConfig(name=f"{name}.{self.n_lives[name]}", model=MODEL_NAME, time_scale=0.0)
        server = SimServer(config, self.text, host=f"127.0.0.{number}", ports=self.ports)
        await server.start()
        self.servers[name], self.numbers[name] = server, number
        self.put(name, number, ready=ready)

    def put(self, name: str, number: int, *, ready: bool, ends: bool = False) -> None:
        """Set the pod object on the API server."""
        meta: dict[str, Any] = {"labels": {"app": "a"}}
        if ends:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        conditions = [{"type": "Ready", "status": str(ready)}]
        self.api.put(
            PODS, name, {"metadata": meta, "status": {"podIP": f"127.0.0.{number}", "conditions": conditions}}
        )

    def pool(self) -> None:
        targets = [{"number": self.ports.http}]
        self.api.put(
            POOLS, "qwen", {"spec": {"selector": {"matchLabels": {"app": "a"}}, "targetPorts": targets}}
        )


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncGenerator[Cluster]:
    write_demo_model(folder)
    api = ApiServerDouble()
    await api.start()
    made = Cluster(api, TokenizerText(folder))
    try:
        yield made
    finally:
        for server in made.servers.values():
            await server.stop()
        await api.stop()


def kvatlas_config(made: Cluster, folder: Path) -> dict[str, Any]:
    kubeconfig = {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": made.api.url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "ns"}}],
    }
    (folder / "kubeconfig").write_bytes(msgspec.yaml.encode(kubeconfig))
    return {
        "endpoints": {"kubernetes": {"inferencePool": "qwen", "kubeconfig": "kubeconfig"}},
        "events": {"port": made.ports.events, "replayPort": made.ports.replay},
    }


def envoy_config(*pickers: Served) -> dict[str, Any]:
    """Return the chart's standalone Envoy on ports of this machine, with one picker per replica."""
    manifests = helm({"router": {"modelServers": {"matchLabels": {"app": "a"}}, "proxy": {"enabled": True}}})
    config: dict[str, Any] = yaml.safe_load(only(manifests, "ConfigMap")["data"]["envoy.yaml"])
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    (endpoints,) = config["static_resources"]["clusters"][1]["load_assignment"]["endpoints"]
    (picker,) = endpoints["lb_endpoints"]
    endpoints["lb_endpoints"] = [copy.deepcopy(picker) for _ in pickers]
    for each, served in zip(endpoints["lb_endpoints"], pickers, strict=True):
        each["endpoint"]["address"]["socket_address"]["port_value"] = served.ports["extProc"]
    return config


@dataclass
class Traffic:
    """Requests through the gateway, `PER_SECOND` of them."""

    url: str
    session: aiohttp.ClientSession
    answers: list[Response] = field(default_factory=list[Response])

    async def flow(self) -> None:
        """Send until cancelled, then wait for the responses."""
        async with asyncio.TaskGroup() as requests:
            number = 0
            with contextlib.suppress(asyncio.CancelledError):
                while True:
                    requests.create_task(self.ask(number))
                    number += 1
                    await asyncio.sleep(1 / PER_SECOND)

    async def ask(self, number: int) -> None:
        prompt = [number] * 16 * BLOCKS_OF_PROMPT  # cached nowhere, so that load and chance decide
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1}
        sent_at = asyncio.get_running_loop().time()
        async with self.session.post(f"{self.url}/v1/completions", json=body) as response:
            await response.read()
            self.answers.append(Response(sent_at, response.status, response.headers.get("x-served-by", "")))

    async def until_served_by(self, *names: str) -> None:
        """Wait until exactly these servers respond to new requests."""
        now = asyncio.get_running_loop().time()

        def they_answer() -> bool:
            servers = {answer.server for answer in self.answers[-40:] if answer.sent_at > now}
            return servers == set(names)

        await until(they_answer, what=f"responses of {names}")


async def test_no_request_fails_when_pods_come_go_and_are_replaced(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(cluster(tmp_path))
        await made.run("a", 2)
        made.pool()
        served = await stack.enter_async_context(serving(kvatlas_config(made, tmp_path), tmp_path))
        envoy = await stack.enter_async_context(EnvoyProcess(envoy_config(served), binary=find_envoy()))
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def are(*names: str) -> None:
            async def they_are() -> bool:
                rows = (await served.get("/v1/endpoints"))["endpoints"]
                return sorted(row["name"] for row in rows) == [f"{name}-rank-0" for name in names]

            await until(they_are, what=f"endpoints {names}")

        async def end(name: str, left: str) -> None:
            """Terminate a pod: it finishes its requests and then disappears."""
            made.put(name, made.numbers[name], ready=True, ends=True)
            await are(left)
            ended[made.servers[name].config.name] = asyncio.get_running_loop().time()
            await traffic.until_served_by(made.servers[left].config.name)
            await made.servers.pop(name).stop()
            made.api.delete(PODS, name)

        ended: dict[str, float] = {}
        traffic = Traffic(envoy.gateway_url, session)
        flow = asyncio.create_task(traffic.flow())
        try:
            await traffic.until_served_by("a.1")
            await made.run("b", 3, ready=False)
            await traffic.until_served_by("a.1")
            made.put("b", 3, ready=True)
            await traffic.until_served_by("a.1", "b.1")
            for number, (name, left) in enumerate([("a", "b"), ("b", "a")] * N_ROUNDS, start=4):
                made.api.break_watches("reset")
                made.api.compact()
                await end(name, left)
                await made.run(name, number)
                await are("a", "b")
                await traffic.until_served_by(*(server.config.name for server in made.servers.values()))
        finally:
            flow.cancel()
            await asyncio.wait([flow])
    flow.result()
    assert {answer.status for answer in traffic.answers} == {200}
    assert [a.server for a in traffic.answers if a.sent_at > ended.get(a.server, a.sent_at)] == []
    lives = range(1, N_ROUNDS + 2)
    assert {answer.server for answer in traffic.answers} == {
        f"{name}.{life}" for name in "ab" for life in lives
    }


async def test_no_request_fails_when_the_leader_is_terminated(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(cluster(tmp_path))
        await made.run("a", 2)
        made.pool()
        config = kvatlas_config(made, tmp_path) | {
            "leaderElection": {"enabled": True, "retryPeriod": "100ms"}
        }
        pickers: list[Served] = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "kubeconfig").write_bytes((tmp_path / "kubeconfig").read_bytes())
            one = serving(config, tmp_path / name, ready=not pickers)
            pickers.append(await stack.enter_async_context(one))
        envoy = EnvoyProcess(envoy_config(*pickers), binary=find_envoy())
        await stack.enter_async_context(envoy)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        traffic = Traffic(envoy.gateway_url, session)
        leader, follower = pickers
        await pickers_in_use(envoy, session, 1)
        flow = asyncio.create_task(traffic.flow())
        try:
            await traffic.until_served_by("a.1")
            leader.process.send_signal(signal.SIGTERM)
            await follower.until_logged(": ready")
            await leader.process.wait()
            await traffic.until_served_by("a.1")
        finally:
            flow.cancel()
            await asyncio.wait([flow])
    flow.result()
    assert Counter(answer.status for answer in traffic.answers) == {200: len(traffic.answers)}
