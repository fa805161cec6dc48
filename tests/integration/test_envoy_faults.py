"""Traffic through a real Envoy while pickers stop, die, hang, slow down, or restart one after the other."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kvatlas.api.http2.context import DEFAULT_MAX_STREAMS
from kvatlas.routing.outcome import Outcome
from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from support.envoy_gateway import (
    ANY_PORT,
    DESTINATION,
    FIRST_EVENT,
    LAST_EVENT,
    Mode,
    ModelServer,
    gateway,
    pickers_in_use,
    start_model_server,
)
from support.serve import ANY_PORTS, ENDS_AT_ONCE, GIVES_NOTICE, Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow
both_modes = pytest.mark.parametrize("mode", ["duplex", "buffered"])
BODY = {"model": "m", "prompt": "p"}


@both_modes
@pytest.mark.parametrize("reason", ["stopped", "not_ready"])
async def test_traffic_flows_round_robin_when_the_picker_is_out(mode: Mode, reason: str) -> None:
    async with gateway(mode) as at:
        assert await at.served_by() == at.servers[0].address
        if reason == "stopped":
            await at.picker.stop(0)
        else:
            at.health.ready = False
        await at.picker_is_out()

        wish = {DESTINATION: at.servers[1].address}  # a client's own header must be ignored here too
        served = {await at.served_by(wish) for _ in range(6)}

        assert served == {server.address for server in at.servers}
        assert len(at.router.requests) == 1


async def test_request_that_a_slow_picker_holds_up_goes_round_robin() -> None:
    async with gateway("buffered") as at:
        at.router.released.clear()

        assert await at.served_by() in {server.address for server in at.servers}
        assert (await at.completion()).outcome is Outcome.ABORTED
        at.router.released.set()


@both_modes
async def test_envoy_lets_as_many_requests_to_a_picker_as_that_takes(mode: Mode) -> None:
    async with gateway(mode) as at, at.client.get(f"{at.envoy.admin_url}/clusters") as answer:
        found = await answer.text()

    for cluster in ("kvatlas", "model_servers"):
        for limit in ("max_connections", "max_pending_requests", "max_requests"):
            assert f"{cluster}::default_priority::{limit}::{DEFAULT_MAX_STREAMS}" in found


@dataclass
class Rig:
    """Envoy in front of real `kvatlas serve` processes and one model server."""

    envoy: EnvoyProcess
    client: aiohttp.ClientSession
    server: ModelServer

    async def ask(self) -> int:
        """Send a completion request; return its status."""
        async with self.client.post("/v1/completions", json=BODY) as answer:
            await answer.read()
            return answer.status

    async def stream(self) -> bytes:
        """Start a streamed response, which lasts until the server is released."""
        async with self.client.post("/v1/stream", json=BODY) as answer:
            return await answer.read()

    async def in_use(self, count: int) -> None:
        """Return once Envoy uses `count` pickers."""
        await pickers_in_use(self.envoy, self.client, count)


@asynccontextmanager
async def rig(mode: Mode, server: ModelServer, pickers: list[Served]) -> AsyncGenerator[Rig]:
    ports = [picker.ports["extProc"] for picker in pickers]
    first = ("127.0.0.1", ports[0])
    config = gateway_config(mode, gateway=ANY_PORT, admin=ANY_PORT, picker=first, servers=[server.host_port])
    cluster = next(each for each in config["static_resources"]["clusters"] if each["name"] == "kvatlas")
    endpoints = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    for port in ports[1:]:
        endpoints.append(
            {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}
        )
    async with (
        EnvoyProcess(config, binary=find_envoy()) as envoy,
        aiohttp.ClientSession(envoy.gateway_url) as client,
    ):
        made = Rig(envoy, client, server)
        await made.in_use(len(pickers))
        yield made


def picker_config(
    server: ModelServer, ext_proc_port: int = 0, *, ends: Mapping[str, str] = ENDS_AT_ONCE
) -> dict[str, Any]:
    static = [{"name": "a", "address": server.address, "events": "", "metrics": ""}]
    listeners = ANY_PORTS | {"extProc": f"127.0.0.1:{ext_proc_port}", **ends}
    return {"endpoints": {"static": static}, "server": listeners}


@both_modes
async def test_traffic_continues_when_a_picker_is_killed(mode: Mode, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await start_model_server(stack)
        picker = await stack.enter_async_context(serving(picker_config(server), tmp_path, end=signal.SIGKILL))
        at = await stack.enter_async_context(rig(mode, server, [picker]))
        assert await at.ask() == 200

        picker.process.kill()
        await at.in_use(0)

        assert [await at.ask() for _ in range(10)] == [200] * 10


@both_modes
async def test_other_picker_is_asked_at_once_when_one_is_killed(mode: Mode, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await start_model_server(stack)
        killed, other = [
            await stack.enter_async_context(
                serving(picker_config(server), folder(tmp_path, name), killed_by=killed_by)
            )
            for name, killed_by in (("killed", signal.SIGKILL), ("other", None))
        ]
        at = await stack.enter_async_context(rig(mode, server, [killed, other]))
        assert {await at.ask() for _ in range(4)} == {200}
        before = await n_picks(other)

        killed.process.kill()
        await killed.process.wait()

        assert [await at.ask() for _ in range(10)] == [200] * 10
        assert await n_picks(other) == before + 10


@both_modes
async def test_traffic_continues_when_a_picker_hangs_and_recovers(mode: Mode, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await start_model_server(stack)
        picker = await stack.enter_async_context(serving(picker_config(server), tmp_path))
        at = await stack.enter_async_context(rig(mode, server, [picker]))

        picker.process.send_signal(signal.SIGSTOP)
        try:
            await at.in_use(0)
            assert [await at.ask() for _ in range(10)] == [200] * 10
        finally:
            picker.process.send_signal(signal.SIGCONT)

        await at.in_use(1)
        before = await n_picks(picker)

        async def is_asked_again() -> bool:
            return await at.ask() == 200 and await n_picks(picker) > before

        await until(is_asked_again, what="a request routed by the picker that goes on")


async def test_pickers_restarted_one_after_the_other_fail_no_request(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await start_model_server(stack)
        first, second = [
            await stack.enter_async_context(
                serving(picker_config(server, ends=GIVES_NOTICE), folder(tmp_path, name))
            )
            for name in ("first", "second")
        ]
        # in full duplex, a stream lasts as long as its response, and its failure fails the request
        at = await stack.enter_async_context(rig("duplex", server, [first, second]))
        statuses: list[int] = []
        is_over = asyncio.Event()

        async def keep_asking() -> None:
            while not is_over.is_set():
                statuses.append(await at.ask())

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        streams = [asyncio.create_task(at.stream()) for _ in range(4)]
        again: list[Served] = []
        for picker in (first, second):
            config = picker_config(server, picker.ports["extProc"])
            await ended(picker, at)
            again.append(
                await stack.enter_async_context(serving(config, folder(tmp_path, f"again{len(again)}")))
            )
            await at.in_use(2)
        seen = len(statuses)
        await until(lambda: len(statuses) > seen + 20, what="load on the restarted pickers")
        is_over.set()
        await asyncio.gather(*asking)

        assert set(statuses) == {200}
        assert {await stream for stream in streams} == {FIRST_EVENT + LAST_EVENT}
        assert all([await n_picks(picker) for picker in again])


async def ended(picker: Served, at: Rig) -> None:
    """Stop a picker, and let streamed responses continue once it is stopping."""
    picker.process.terminate()
    await until(lambda: any("stopping" in line for line in picker.log), what="the picker's wish to stop")
    at.server.released.set()
    await picker.process.wait()


async def n_picks(picker: Served) -> int:
    """Return the number of requests that the picker has routed."""
    found = re.search(r'^kvatlas_picks_total{endpoint="a"} (\d+)', await picker.metrics(), re.MULTILINE)
    return int(found[1]) if found else 0


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made
