"""A pod of the chart with its Envoy: its containers' commands as plain processes, ended as a kubelet ends them."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import yaml

from kvatlas.sim.envoy import EnvoyProcess, find_envoy
from kvatlas.sim.held_port import HeldPort
from support.api_server import ApiServerDouble
from support.cluster import access
from support.custom_resources import Manifest
from support.forks import Fork, fork
from support.manifests import only
from support.waiting import until

_LISTENS = re.compile(r"(\w+) listens on \S+:(\d+)")
_ANY_PORTS = (*("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"), "--rest=127.0.0.1:0")


class ChartPod:
    """One pod of a rendering of the chart with `router.proxy`.

    Args:
        manifests: the rendering.
        folder: where its files go.

    Attributes:
        url: of its Envoy, for clients.
    """

    def __init__(self, manifests: list[Manifest], folder: Path) -> None:
        folder.mkdir()
        self._folder, self._admin = folder, HeldPort()
        spec = only(manifests, "Deployment")["spec"]["template"]["spec"]
        self._containers: list[Manifest] = spec["containers"]
        self._sidecars: list[Manifest] = [
            each for each in spec.get("initContainers", ()) if each.get("restartPolicy") == "Always"
        ]
        self._files: dict[str, str] = only(manifests, "ConfigMap")["data"]
        self._picker: Fork | None = None
        self._envoy: EnvoyProcess | None = None
        self.url = ""
        self._ports: dict[str, int] = {}
        self._log: list[str] = []

    async def start(self, double: ApiServerDouble, target_port: int) -> None:
        """Start kvatlas, then Envoy, on ports of this machine."""
        access(double, self._folder)
        config = yaml.safe_load(self._files["kvatlas.yaml"])
        del config["server"]["auth"]
        if "proxyAdmin" in config["server"]:
            config["server"]["proxyAdmin"] = f"127.0.0.1:{self._admin.number}"
        (self._folder / "kvatlas.yaml").write_text(yaml.safe_dump(config))
        epp = next(each for each in self._containers if each["name"] == "epp")
        arguments = [
            re.sub(r"(target-ports)=.*", rf"\1={target_port}", text).replace("/config/", f"{self._folder}/")
            for text in epp["args"]
        ]
        self._picker = await fork(
            *("serve", *arguments, *_ANY_PORTS),
            environment=os.environ | {"KUBECONFIG": str(self._folder / "kubeconfig")},
        )
        self._reading = asyncio.create_task(self._read(self._picker))
        # workers listen once they are ready
        await until(
            lambda: "extProc" in self._ports and any(line.endswith(" ready") for line in self._log),
            what="readiness of kvatlas",
        )
        envoy: dict[str, Any] = yaml.safe_load(self._files["envoy.yaml"])
        envoy["admin"]["address"]["socket_address"]["port_value"] = self._admin.number
        resources = envoy["static_resources"]
        resources["listeners"][0]["address"]["socket_address"] |= {"address": "127.0.0.1", "port_value": 0}
        kvatlas = next(each for each in resources["clusters"] if each["name"] == "kvatlas")
        (group,) = kvatlas["load_assignment"]["endpoints"]
        (endpoint,) = group["lb_endpoints"]
        endpoint["endpoint"]["address"]["socket_address"]["port_value"] = self._ports["extProc"]
        self._envoy = EnvoyProcess(envoy, binary=find_envoy())
        await self._envoy.start()
        self.url = self._envoy.gateway_url

    async def kill_picker(self) -> None:
        """End kvatlas by force, as the kernel does when memory runs out."""
        if self._picker is not None:
            self._picker.kill()
            await self._picker.wait()

    async def end(self) -> None:
        """End the containers as a kubelet does: sidecars get SIGTERM only after all others have ended."""
        await asyncio.gather(*(self._end(each) for each in self._containers))
        for each in reversed(self._sidecars):
            await self._end(each)

    async def _end(self, container: Manifest) -> None:
        if container["name"] == "envoy":
            if self._envoy is not None:
                await self._envoy.stop()
        elif self._picker is not None:
            self._picker.terminate()
            await self._picker.wait()
            await self._reading

    async def _read(self, process: Fork) -> None:
        async for raw in process.stderr:
            line = raw.decode().rstrip()
            self._log.append(line)
            if found := _LISTENS.search(line):
                self._ports[found[1]] = int(found[2])
