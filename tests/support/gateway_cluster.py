"""A small cluster on one machine: API server, pods with simulated engines, the chart's Envoy, and requests through it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.held_port import HeldPort
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import Ports, ServerConfig, SimServer
from support.api_server import ApiServerDouble
from support.manifests import helm, only
from support.serve import Served
from support.waiting import until

PODS = "/api/v1/namespaces/ns/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
BLOCKS_OF_PROMPT = 8


@dataclass
class Answer:
    """One request: when it was sent, and who answered how."""

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
        """Start a pod on the address of this number; its engine says `NAME.LIFE` with every answer."""
        self.n_lives[name] += 1
        config = ServerConfig(name=f"{name}.{self.n_lives[name]}", model=MODEL_NAME, time_scale=0.0)
        server = SimServer(config, self.text, host=address(number), ports=self.ports)
        await server.start()
        self.servers[name], self.numbers[name] = server, number
        self.put(name, number, ready=ready)

    def put(self, name: str, number: int, *, ready: bool, ends: bool = False) -> None:
        """Change what the API server shows of a pod."""
        meta: dict[str, Any] = {"labels": {"app": "a"}}
        if ends:
            meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        conditions = [{"type": "Ready", "status": str(ready)}]
        self.api.put(
            PODS, name, {"metadata": meta, "status": {"podIP": address(number), "conditions": conditions}}
        )

    def pool(self) -> None:
        targets = [{"number": self.ports.http}]
        self.api.put(
            POOLS, "qwen", {"spec": {"selector": {"matchLabels": {"app": "a"}}, "targetPorts": targets}}
        )


def address(number: int) -> str:
    """Return the address of a pod by its number."""
    return f"127.0.{number // 250}.{number % 250}"


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
    """What the chart gives its Envoy, on ports of this machine; for several replicas one of none of them, which asks for their readiness."""
    manifests = helm({"router": {"modelServers": {"matchLabels": {"app": "a"}}, "proxy": {"enabled": True}}})
    config: dict[str, Any] = yaml.safe_load(only(manifests, "ConfigMap")["data"]["envoy.yaml"])
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    (listener,) = config["static_resources"]["listeners"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    asked = config["static_resources"]["clusters"][1]
    if len(pickers) > 1:
        (check,) = asked["health_checks"]
        check["grpc_health_check"] = {"service_name": "envoy.service.ext_proc.v3.ExternalProcessor"}
    (endpoints,) = asked["load_assignment"]["endpoints"]
    (picker,) = endpoints["lb_endpoints"]
    endpoints["lb_endpoints"] = [copy.deepcopy(picker) for _ in pickers]
    for each, served in zip(endpoints["lb_endpoints"], pickers, strict=True):
        each["endpoint"]["address"]["socket_address"]["port_value"] = served.ports["extProc"]
    return config


@dataclass
class Traffic:
    """Requests that flow through the gateway."""

    url: str
    session: aiohttp.ClientSession
    per_second: float = 200
    answers: list[Answer] = field(default_factory=list[Answer])
    n_waiting: Counter[float] = field(default_factory=Counter[float])
    """Time of sending -> requests sent then that have no answer yet."""

    async def flow(self) -> None:
        """Send until cancelled, and wait for what was sent."""
        async with asyncio.TaskGroup() as requests:
            number = 0
            with contextlib.suppress(asyncio.CancelledError):
                while True:
                    requests.create_task(self.ask(number))
                    number += 1
                    await asyncio.sleep(1 / self.per_second)

    async def ask(self, number: int) -> None:
        prompt = [number] * 16 * BLOCKS_OF_PROMPT  # held by nobody, so that load and chance decide
        body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1}
        sent_at = asyncio.get_running_loop().time()
        self.n_waiting[sent_at] += 1
        async with self.session.post(f"{self.url}/v1/completions", json=body) as answer:
            await answer.read()
            self.answers.append(Answer(sent_at, answer.status, answer.headers.get("x-served-by", "")))
        self.n_waiting[sent_at] -= 1
        if not self.n_waiting[sent_at]:
            del self.n_waiting[sent_at]

    async def until_answered(self) -> None:
        """Wait until everything sent so far has an answer."""
        now = asyncio.get_running_loop().time()
        await until(lambda: not any(sent_at <= now for sent_at in self.n_waiting), what="answers")

    async def until_served_by(self, *names: str) -> None:
        """Wait until each of these, and nobody else, answers what is sent from now on."""
        now = asyncio.get_running_loop().time()

        def they_answer() -> bool:
            servers = {answer.server for answer in self.answers[-40:] if answer.sent_at > now}
            return servers == set(names)

        await until(they_answer, what=f"answers of {names}")
