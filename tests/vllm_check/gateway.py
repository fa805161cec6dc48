"""kvatlas and Envoy in front of the servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kvatlas.sim.envoy import EnvoyConfig, EnvoyProcess, find_envoy, gateway_config, without_picker
from kvatlas.sim.http_api import SERVED_BY
from kvatlas.sim.kvatlas_process import KVAtlasProcess

from .model import MODEL_NAME
from .server import HOST, VllmServer

_ANY_PORT = (HOST, 0)


@dataclass(frozen=True, slots=True)
class KVAtlas:
    """A running kvatlas: its REST URL and the port of its ext-proc listener."""

    url: str
    ext_proc_port: int
    process: KVAtlasProcess


@asynccontextmanager
async def kvatlas_for(
    servers: Sequence[VllmServer], folder: Path, settings: Mapping[str, Any] | None = None
) -> AsyncGenerator[KVAtlas]:
    """Run `kvatlas serve`, following `servers`; its configuration and log are in `folder`.

    Args:
        servers: all of the same model.
        folder: has the model's folder.
        settings: sections of the configuration, None for the defaults.
    """
    endpoints = [
        {
            "name": server.name,
            "address": f"{HOST}:{server.ports.http}",
            "events": server.events,
            "replay": server.replay,
        }
        for server in servers
    ]
    config = {
        "apiVersion": "kvatlas/v1",
        "kind": "KVAtlasConfig",
        "server": {"extProc": f"{HOST}:0", "rest": f"{HOST}:0", "health": "", "metrics": ""},
        "model": {"names": [MODEL_NAME], "tokenizer": str(folder / servers[0].options.shape.name)},
        "endpoints": {"static": endpoints},
    }
    file = folder / "kvatlas.yaml"
    file.write_text(yaml.safe_dump(config | dict(settings or {}), sort_keys=False))
    async with KVAtlasProcess(file, log=folder / "kvatlas.log") as process:
        yield KVAtlas(process.rest_url, process.addresses["extProc"][1], process)


@asynccontextmanager
async def envoy_for(servers: Sequence[VllmServer], kvatlas: KVAtlas | None) -> AsyncGenerator[EnvoyProcess]:
    """Run Envoy in front of `servers`: with kvatlas as its picker, or round robin if that is None."""
    config = _envoy_config(servers, kvatlas.ext_proc_port if kvatlas is not None else 0)
    async with EnvoyProcess(
        config if kvatlas is not None else without_picker(config), binary=find_envoy()
    ) as envoy:
        yield envoy


async def metric_sums(urls: Iterable[str]) -> Mapping[str, float]:
    """Return sample name -> sum over all pages and labels; `name{value}` too, for every label value; others are 0.

    Raises:
        aiohttp.ClientError: a page cannot be read.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        for url in urls:
            async with session.get(url) as response:
                text = await response.text()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    sums[sample.name] += sample.value
                    for value in sample.labels.values():
                        sums[f"{sample.name}{{{value}}}"] += sample.value
    return sums


def _envoy_config(servers: Sequence[VllmServer], picker_port: int) -> EnvoyConfig:
    """Return the shipped configuration, with the server's address added to every response: vLLM does not name itself."""
    config = gateway_config(
        "duplex",
        gateway=_ANY_PORT,
        admin=_ANY_PORT,
        picker=(HOST, picker_port),
        servers=[(HOST, server.ports.http) for server in servers],
    )
    listener = config["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["response_headers_to_add"] = [
        {"header": {"key": SERVED_BY, "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
    ]
    return config
