"""kvatlas in the place of the reference picker's image: a rendering of the reference's charts, run as its pod would be."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import re
import signal
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from aiohttp import web
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from kvatlas.configs.listeners import DRAIN_S
from kvatlas.sim.held_port import HeldPort
from support.api_server import ApiServerDouble
from support.cluster import access
from support.forks import Fork, fork
from support.tree import ROOT
from support.waiting import PATIENCE_S, until

FOLDER = ROOT / "tests" / "golden" / "epp-charts"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json") if path.stem != "envoy")
PODS = "/api/v1/namespaces/default/pods"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/default/inferencepools"
_LISTENS = re.compile(r"(\w+) listens on 0\.0\.0\.0:(\d+)")
_ANY_PORTS = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0")


@dataclass
class Rendering:
    """One rendering.

    Attributes:
        name: of its file.
        data: see the README beside the files.
    """

    name: str
    data: dict[str, Any]

    @classmethod
    def read(cls, name: str) -> Rendering:
        return cls(name, json.loads((FOLDER / f"{name}.json").read_text()))

    @property
    def is_secure(self) -> bool:
        return "--secure-serving=false" not in self.data["epp"]["args"]

    def arguments(self, config: Path, target_port: int) -> list[str]:
        """Return the container's arguments, with this machine's folder and ports."""
        given = [text.replace("/config/", f"{config}/") for text in self.data["epp"]["args"]]
        if "--endpoint-target-ports" in given:
            given[given.index("--endpoint-target-ports") + 1] = str(target_port)
        return [*given, *_ANY_PORTS]

    def environment(self, pod: str) -> dict[str, str]:
        """Return the container's variables."""
        fields = {"metadata.namespace": "default", "metadata.name": pod, "spec.nodeName": "node"}
        return {
            each["name"]: each["value"]
            if "value" in each
            else fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            for each in self.data["epp"]["env"]
        }

    def probe(self, kind: str) -> str:
        """Return the gRPC health service that a probe names: liveness or readiness."""
        service: str = self.data["epp"][f"{kind}Probe"]["grpc"]["service"]
        return service


@dataclass
class ModelServers:
    """Two model servers on one port of two addresses, and the headers and bodies that they received."""

    port: HeldPort = field(default_factory=lambda: HeldPort("0.0.0.0"))
    received: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    """Address where a request should go by the picker, and its body."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[ModelServers]:
        async with contextlib.AsyncExitStack() as stack:
            for number in (2, 3):
                app = web.Application()
                app.router.add_post("/{path:.*}", self._answer)
                runner = web.AppRunner(app, shutdown_timeout=1)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                site = web.TCPSite(runner, f"127.0.0.{number}", self.port.number, reuse_address=True)
                await site.start()
            yield self

    async def _answer(self, request: web.Request) -> web.Response:
        destination = request.headers.get("x-gateway-destination-endpoint", "")
        self.received.append((destination, await request.read()))
        return web.json_response({})


@dataclass
class Picker:
    """A running picker."""

    rendering: Rendering
    process: Fork
    ports: dict[str, int] = field(default_factory=dict[str, int])
    log: list[str] = field(default_factory=list[str])

    async def health(self, service: str) -> int:
        """Return the status that the kubelet's probe gets."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.ports['health']}") as channel:
            check: grpc.aio.UnaryUnaryMultiCallable[HealthCheckRequest, HealthCheckResponse] = (
                channel.unary_unary(
                    "/grpc.health.v1.Health/Check",
                    request_serializer=HealthCheckRequest.SerializeToString,
                    response_deserializer=HealthCheckResponse.FromString,
                )
            )
            answer = await check(HealthCheckRequest(service=service), timeout=PATIENCE_S)
            return int(answer.status)

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            return await self.health(self.rendering.probe("readiness")) == int(HealthCheckResponse.SERVING)

        await until(is_ready, what="readiness")

    async def read(self) -> None:
        async for raw in self.process.stderr:
            line = raw.decode().rstrip()
            self.log.append(line)
            if found := _LISTENS.search(line):
                self.ports[found[1]] = int(found[2])


@contextlib.asynccontextmanager
async def cluster(rendering: Rendering, target_port: int) -> AsyncGenerator[ApiServerDouble]:
    """Run the API server with two pods, the rendering's pool, and its rights."""
    double = ApiServerDouble()
    await double.start()
    double.groups = {"llm-d.ai/v1alpha2": ["inferenceobjectives", "inferencemodelrewrites"]}
    for spec in copy.deepcopy(rendering.data["pools"]):
        spec["targetPorts"] = [{"number": target_port}]
        double.put(POOLS, "my-pool", {"spec": spec})
    for number in (2, 3):
        meta = {"labels": {"app": "vllm"}, "annotations": {"kvatlas.io/events-port": ""}}
        conditions = [{"type": "Ready", "status": "True"}]
        double.put(
            PODS,
            f"vllm-{number}",
            {"metadata": meta, "status": {"podIP": f"127.0.0.{number}", "conditions": conditions}},
        )
    double.rights.rules = rendering.data["rules"]
    try:
        yield double
    finally:
        await double.stop()


@contextlib.asynccontextmanager
async def picking(
    rendering: Rendering, double: ApiServerDouble, folder: Path, target_port: int, *, replica: int = 0
) -> AsyncGenerator[Picker]:
    """Run kvatlas as one pod of the rendering, until its listeners are open."""
    for name, text in rendering.data["config"].items():
        (folder / name).write_text(text)
    access(double, folder)
    process = await fork(
        "serve",
        *rendering.arguments(folder, target_port),
        environment=os.environ
        | rendering.environment(f"my-pool-epp-{replica}")
        | {"KUBECONFIG": str(folder / "kubeconfig")},
    )
    picker = Picker(rendering, process)
    reader = asyncio.create_task(picker.read())

    def listens() -> bool:
        assert process.returncode is None, "kvatlas serve ended: " + "\n".join(picker.log)
        return picker.ports.keys() >= {"extProc", "health", "metrics"}

    try:
        await until(listens, what="the listeners")
        yield picker
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), timeout=DRAIN_S + PATIENCE_S)
        await reader


def proxy(picker: Picker) -> dict[str, Any]:
    """Return the chart's Envoy on ports of this machine; it stands in for the gateway if the chart brings none."""
    config: dict[str, Any] = json.loads((FOLDER / "envoy.json").read_text())
    config["admin"]["address"]["socket_address"]["port_value"] = 0
    resources = config["static_resources"]
    resources["listeners"] = [each for each in resources["listeners"] if each["name"] == "vllm"]
    (listener,) = resources["listeners"]
    listener["name"] = "gateway"
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    del listener["additional_addresses"]
    ext_proc = next(each for each in resources["clusters"] if each["name"] == "ext_proc")
    (endpoints,) = ext_proc["load_assignment"]["endpoints"]
    (endpoint,) = endpoints["lb_endpoints"]
    endpoint["endpoint"]["address"]["socket_address"]["port_value"] = picker.ports["extProc"]
    if not picker.rendering.is_secure:  # the charts leave it out then
        del ext_proc["transport_socket"], ext_proc["health_checks"][0]["tls_options"]
    return config
