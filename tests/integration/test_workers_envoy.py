"""Workers behind a real Envoy that knows one port, in front of simulated servers, while one of them is killed.

KVATLAS_REPLICA_RATE sets the rate in requests per second, KVATLAS_REPLICA_PHASE_S the time of each of three phases.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.envoy import EnvoyConfig, EnvoyProcess, find_envoy, gateway_config
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig
from support.chats import PHASE_S, send_chats
from support.envoy_gateway import ANY_PORT
from support.replica_figures import Figures, Phase, record
from support.serve import ANY_PORTS, Served, serving
from support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "KVATLAS_REPLICA_RATE" not in os.environ, reason="takes half a minute: make replica-check"
    ),
]
N_WORKERS, N_SERVERS, REQUESTS_PER_CONNECTION = 3, 3, 50


def pid_of(worker: int, parent: int) -> int:
    """Return the process id of a worker; the parent starts them in order."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(children[worker])


def rest_ports(served: Served) -> dict[int, int]:
    """Return worker -> port of its REST listener."""
    listening = re.compile(r"worker (\d) INFO .*: rest listens on 127\.0\.0\.1:(\d+)")
    return {int(found[1]): int(found[2]) for line in served.log if (found := listening.search(line))}


async def metrics(served: Served, worker: int) -> list[str]:
    async with served.session.get(f"http://127.0.0.1:{rest_ports(served)[worker]}/metrics") as answer:
        return (await answer.text()).splitlines()


async def is_whole(served: Served) -> bool:
    """Return whether every worker is ready, hears all others, and counts nothing in flight, here or there."""
    names = ("kvatlas_in_flight_requests{", "kvatlas_replica_in_flight_requests ")
    for worker in range(N_WORKERS):
        lines = await metrics(served, worker)
        in_flight = sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(names))
        live = f'kvatlas_replica_siblings{{state="live"}} {N_WORKERS - 1}.0'
        if in_flight or live not in lines or "kvatlas_ready 1.0" not in lines:
            return False
    return True


async def decided(served: Served) -> dict[int, int]:
    """Return worker -> decisions that it made."""
    found: dict[int, int] = {}
    for worker in range(N_WORKERS):
        lines = [each for each in await metrics(served, worker) if each.startswith("kvatlas_picks_total{")]
        found[worker] = int(sum(float(line.rpartition(" ")[2]) for line in lines))
    return found


def envoy_of(fleet: Fleet, port: int) -> EnvoyConfig:
    """Return a gateway that opens a new connection to kvatlas every few requests, as if it had many threads."""
    addresses = [each.address.rpartition(":") for each in fleet.servers]
    config = gateway_config(
        "buffered",
        gateway=ANY_PORT,
        admin=ANY_PORT,
        picker=("127.0.0.1", port),
        servers=[(host, int(port)) for host, _, port in addresses],
    )
    kvatlas = next(each for each in config["static_resources"]["clusters"] if each["name"] == "kvatlas")
    (options,) = kvatlas["typed_extension_protocol_options"].values()
    options["common_http_protocol_options"] = {"max_requests_per_connection": REQUESTS_PER_CONNECTION}
    return config


async def test_killed_worker_fails_no_request_leaves_no_booking_and_comes_back_warm(tmp_path: Path) -> None:
    write_demo_model(tmp_path / "model")
    servers = [
        ServerConfig(name=f"s{n}", model=MODEL_NAME, gpu_blocks=400, time_scale=0.2) for n in range(N_SERVERS)
    ]
    rng = random.Random(1)
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(Fleet(servers, TokenizerText(tmp_path / "model")))
        static = [
            {
                "name": each.config.name,
                "address": each.address,
                "events": each.events_address,
                "replay": each.replay_address,
                "metrics": f"http://{each.address}/metrics",
            }
            for each in fleet.servers
        ]
        config = {
            "server": ANY_PORTS | {"workers": N_WORKERS},
            "endpoints": {"static": static},
            "model": {"names": [MODEL_NAME], "tokenizer": str(tmp_path / "model")},
            "policy": "latency",
        }
        served = await stack.enter_async_context(serving(config, tmp_path))
        await until(partial(is_whole, served), what="all workers to be ready")
        envoy = await stack.enter_async_context(
            EnvoyProcess(envoy_of(fleet, served.ports["extProc"]), binary=find_envoy())
        )
        await until(envoy.is_picker_healthy, what="health of kvatlas")
        client = await stack.enter_async_context(
            aiohttp.ClientSession(envoy.gateway_url, connector=aiohttp.TCPConnector(limit=0))
        )
        await send_chats(client, rng, PHASE_S)
        before = await send_chats(client, rng, PHASE_S)
        counts, undecided = await decided(served), await envoy.n_without_picker()
        assert min(counts.values()) > 0, f"the kernel spreads connections over all workers: {counts}"

        hurt = asyncio.create_task(send_chats(client, rng, PHASE_S))
        await asyncio.sleep(PHASE_S / 3)
        victim = max(counts, key=counts.__getitem__)
        os.kill(pid_of(victim, served.process.pid), signal.SIGKILL)
        during = await hurt
        await until(partial(is_whole, served), what="all workers again, with nothing in flight")
        during.undecided = await envoy.n_without_picker() - undecided
        after = await send_chats(client, rng, PHASE_S)
        await until(partial(is_whole, served), what="the end of all requests")
        record(
            Figures(
                transport="workers of a pod",
                hurt="kill -9 of a worker",
                phases=[Phase.of(each) for each in (before, during, after)],
                counted=0,
                left=0,  # as `is_whole` has waited for
            )
        )

        assert (before.failed, during.failed, after.failed) == (0, 0, 0)
        assert any(f"worker {victim}" in line and "gave its snapshot" in line for line in served.log)
        assert (await decided(served))[victim] > 0
