"""kvatlas and Envoy in front of the servers, and the multi-turn workload through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from kvatlas.sim.envoy import EnvoyConfig, EnvoyProcess, find_envoy, gateway_config, without_picker
from kvatlas.sim.http_api import SERVED_BY
from kvatlas.sim.kvatlas_process import KVAtlasProcess
from kvatlas.sim.workload import TierTokens, WorkloadResult, WorkloadSpec, read_tier_tokens, run_workload

from .model import MODEL_NAME
from .server import HOST, VllmServer, running

_ANY_PORT = (HOST, 0)
_PICKS = "kvatlas_picks_total"
_EXPECTED = "kvatlas_usable_prefix_tokens_total"


@dataclass(frozen=True, slots=True)
class KVAtlas:
    """A running kvatlas: its REST URL and the port of its ext-proc listener."""

    url: str
    ext_proc_port: int
    process: KVAtlasProcess


@dataclass(frozen=True, slots=True)
class Picks:
    """Decisions of kvatlas: requests it picked a server for, and the cached tokens it expected for them."""

    n_requests: int
    expected_tokens: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of the workload.

    Attributes:
        workload: every turn.
        tiers: prompt tokens found in each tier, by the servers' own count.
        picks: None without kvatlas.
    """

    workload: WorkloadResult
    tiers: TierTokens
    picks: Picks | None


@asynccontextmanager
async def kvatlas_for(servers: Sequence[VllmServer], folder: Path) -> AsyncGenerator[KVAtlas]:
    """Run `kvatlas serve` with default settings, following `servers`; its configuration and log are in `folder`."""
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
        "model": {"names": [MODEL_NAME], "tokenizer": str(folder / "model")},
        "endpoints": {"static": endpoints},
    }
    file = folder / "kvatlas.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False))
    async with KVAtlasProcess(file, log=folder / "kvatlas.log") as process:
        yield KVAtlas(process.rest_url, process.addresses["extProc"][1], process)


async def play_round_robin(
    servers: Sequence[VllmServer], spec: WorkloadSpec, *, progress: Callable[[], None]
) -> Outcome:
    """Run the workload through Envoy alone, on newly started servers."""
    async with (
        running(servers),
        EnvoyProcess(without_picker(_envoy_config(servers, 0)), binary=find_envoy()) as envoy,
    ):
        return await _play(envoy, servers, spec, progress, kvatlas=None)


async def play_kvatlas(
    servers: Sequence[VllmServer], spec: WorkloadSpec, folder: Path, *, progress: Callable[[], None]
) -> Outcome:
    """Run the workload through Envoy and kvatlas, on newly started servers."""
    async with (
        running(servers),
        kvatlas_for(servers, folder) as kvatlas,
        EnvoyProcess(_envoy_config(servers, kvatlas.ext_proc_port), binary=find_envoy()) as envoy,
    ):
        return await _play(envoy, servers, spec, progress, kvatlas=kvatlas)


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


async def _play(
    envoy: EnvoyProcess,
    servers: Sequence[VllmServer],
    spec: WorkloadSpec,
    progress: Callable[[], None],
    *,
    kvatlas: KVAtlas | None,
) -> Outcome:
    result = await run_workload(envoy.gateway_url, MODEL_NAME, spec, progress=progress)
    tiers = await read_tier_tokens(f"{server.url}/metrics" for server in servers)
    if kvatlas is None:
        return Outcome(result, tiers, None)
    kvatlas.process.check()
    return Outcome(result, tiers, await _picks(kvatlas))


async def _picks(kvatlas: KVAtlas) -> Picks:
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.get(f"{kvatlas.url}/metrics") as answer,
    ):
        text = await answer.text()
    sums: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] += int(sample.value) if sample.name in (_PICKS, _EXPECTED) else 0
    return Picks(sums[_PICKS], sums[_EXPECTED])
