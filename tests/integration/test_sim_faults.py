"""Faults of simulated servers over real HTTP and ZMQ, and the command that runs them."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import zmq
import zmq.asyncio

from kvatlas.configs.loader import load_file
from kvatlas.events.errors import WireError
from kvatlas.events.wire import decode_batch
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.faults import EventFaults, HttpFaults
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig, SimServer

LIMIT_S = 15.0
N_REQUESTS = 12


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TokenizerText:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return TokenizerText(folder)


@asynccontextmanager
async def serving(
    text: TokenizerText, **config: Any
) -> AsyncGenerator[tuple[SimServer, aiohttp.ClientSession]]:
    defaults: dict[str, Any] = {
        "name": "sim-0",
        "model": MODEL_NAME,
        "gpu_blocks": 512,
        "time_scale": 0.0,
        "seed": 3,
    }
    async with (
        SimServer(ServerConfig(**defaults | config), text) as server,
        aiohttp.ClientSession(f"http://{server.address}") as session,
    ):
        yield server, session


async def ask(session: aiohttp.ClientSession, first: int) -> int:
    body = {"model": MODEL_NAME, "prompt": list(range(first, first + 40)), "max_tokens": 1}
    async with session.post("/v1/completions", json=body) as answer:
        await answer.read()
        return answer.status


async def live_batches(server: SimServer, session: aiohttp.ClientSession, *, until: int) -> list[list[bytes]]:
    """What a subscriber gets of `N_REQUESTS` requests, and of as many more as it takes to get batch `until`."""
    context = zmq.asyncio.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    subscriber.connect(server.events_address)
    got: list[list[bytes]] = []
    try:
        async with asyncio.timeout(LIMIT_S):
            first = 0
            while first < N_REQUESTS or not got or seq_of(got[-1]) < until:
                await ask(session, 300 + 50 * first)
                first += 1
                while await subscriber.poll(20):
                    got.append(await subscriber.recv_multipart())
    finally:
        subscriber.close(linger=0)
        context.term()
    return got


def seq_of(frames: list[bytes]) -> int:
    return int.from_bytes(frames[1], "big")


@pytest.mark.parametrize(
    ("faults", "shows"),
    [
        pytest.param(EventFaults(drop=0.3), "gaps", id="drop"),
        pytest.param(EventFaults(duplicate=0.3), "repeats", id="duplicate"),
        pytest.param(EventFaults(reorder=0.3), "disorder", id="reorder"),
        pytest.param(EventFaults(corrupt=0.3), "garbage", id="corrupt"),
    ],
)
async def test_event_stream_has_the_faults_asked_for(
    text: TokenizerText, faults: EventFaults, shows: str
) -> None:
    async with serving(text, event_faults=faults) as (server, session):
        got = await live_batches(server, session, until=N_REQUESTS)

    sequences = [seq_of(frames) for frames in got]
    steps = {later - earlier for earlier, later in pairwise(sequences)}
    seen = {
        "gaps": any(step > 1 for step in steps),
        "repeats": 0 in steps,
        "disorder": any(step < 0 for step in steps),
        "garbage": any(not readable(frames[2]) for frames in got),
    }
    assert seen[shows]
    assert not any(seen[other] for other in ("repeats", "garbage") if other != shows)


def readable(payload: bytes) -> bool:
    try:
        decode_batch(payload)
    except WireError:
        return False
    return True


async def test_late_events_come_in_order(text: TokenizerText) -> None:
    async with serving(text, event_faults=EventFaults(lag_s=0.2)) as (server, session):
        got = await live_batches(server, session, until=N_REQUESTS)

    sequences = [seq_of(frames) for frames in got]
    assert sequences == sorted(sequences)


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        pytest.param(HttpFaults(refuse=1.0), 503, id="refuse"),
        pytest.param(HttpFaults(abort=1.0), "ServerDisconnectedError", id="abort"),
        pytest.param(HttpFaults(slow=1.0, slow_s=0.3), 200, id="slow"),
    ],
)
async def test_requests_fail_as_asked(text: TokenizerText, faults: HttpFaults, outcome: int | str) -> None:
    async with serving(text, http_faults=faults) as (_, session):
        started = asyncio.get_running_loop().time()
        try:
            found: int | str = await ask(session, 300)
        except aiohttp.ServerDisconnectedError as error:
            found = type(error).__name__
        waited = asyncio.get_running_loop().time() - started
        async with session.get("/health") as answer:
            assert answer.status == 200

    assert found == outcome
    assert waited >= 0.3 * faults.slow


async def test_command_runs_servers_that_die_and_come_back_until_it_is_told_to_stop(tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"
    arguments = (
        "--servers",
        "2",
        "--cpu-blocks",
        "64",
        "--storage",
        "--restart-every",
        "0.5",
        "--down-for",
        "0.1",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvatlas.api.cli", "simulate", *arguments, "--config", str(config),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(60):
            while not any("is back" in line for line in lines):
                lines.append((await process.stdout.readline()).decode())
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    loaded = load_file(config).config
    assert [tier.name for tier in loaded.tiers] == ["gpu", "cpu", "storage"]
    assert [each.name for each in loaded.endpoints.static] == ["sim-0", "sim-1"]
    assert all(any(f"http://{each.address} " in line for line in lines) for each in loaded.endpoints.static)
    assert any(re.fullmatch(r"sim-[01] dies\n", line) for line in lines)
