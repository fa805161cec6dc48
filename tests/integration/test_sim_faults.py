"""Faults of simulated servers over real HTTP and ZMQ, and the command that runs them."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import subprocess
import sys
import threading
from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
import zmq
import zmq.asyncio
from rich.console import Console
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.loader import load_file
from kvatlas.configs.schema import EventsConfig, StaticEndpoint
from kvatlas.events.errors import WireError
from kvatlas.events.wire import decode_batch
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.faults import EventFaults, HttpFaults
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.live import SimulateOptions, server_configs, simulate
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig, SimServer
from support.fleets import make_fleet
from support.serve import Served
from support.serve import serving as serving_kvatlas
from support.sim_servers import sim_server
from support.waiting import PATIENCE_S, until

N_REQUESTS, N_BATCHES = 12, 40
"""A fault with chance 0.3 is not among 40 batches once in a million times."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TokenizerText:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return TokenizerText(folder)


@asynccontextmanager
async def serving(
    text: TokenizerText, **config: Any
) -> AsyncGenerator[tuple[SimServer, aiohttp.ClientSession]]:
    async with sim_server(text, **{"gpu_blocks": 512, "seed": 3} | config) as at:
        yield at


async def ask(session: aiohttp.ClientSession, first: int, address: str = "") -> int:
    body = {"model": MODEL_NAME, "prompt": list(range(first, first + 40)), "max_tokens": 1}
    url = f"http://{address}/v1/completions" if address else "/v1/completions"
    async with session.post(url, json=body) as answer:
        await answer.read()
        return answer.status


async def live_batches(server: SimServer, session: aiohttp.ClientSession, *, span: int) -> list[list[bytes]]:
    """Send requests until a batch arrives that was published `span` after the first one, which may be any; return the received."""
    context = zmq.asyncio.Context()
    subscriber = context.socket(zmq.SUB)
    subscriber.subscribe(b"")
    subscriber.connect(server.events_address)
    got: list[list[bytes]] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            first = 0
            while not got or seq_of(got[-1]) - seq_of(got[0]) < span:
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
        pytest.param(EventFaults(truncate=0.3), "garbage", id="truncate"),
        pytest.param(EventFaults(foreign=0.3), "rejected", id="foreign"),
    ],
)
async def test_event_stream_has_the_configured_faults(
    text: TokenizerText, faults: EventFaults, shows: str
) -> None:
    async with serving(text, event_faults=faults) as (server, session):
        got = await live_batches(server, session, span=N_BATCHES)

    sequences = [seq_of(frames) for frames in got]
    steps = {later - earlier for earlier, later in pairwise(sequences)}
    seen = {
        "gaps": any(step > 1 for step in steps),
        "repeats": 0 in steps,
        "disorder": any(step < 0 for step in steps),
        "garbage": any(not readable(frames[2]) for frames in got),
        "rejected": any(readable(frames[2]) and decode_batch(frames[2]).rejected for frames in got),
    }
    assert seen[shows]
    assert not any(seen[other] for other in ("repeats", "garbage", "rejected") if other != shows)


def readable(payload: bytes) -> bool:
    try:
        decode_batch(payload)
    except WireError:
        return False
    return True


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(EventFaults(drop=0.2, duplicate=0.2, reorder=0.2), id="lost_repeated_and_out_of_order"),
        pytest.param(EventFaults(lag_s=0.1, drop=0.3), id="lost_and_late"),
    ],
)
async def test_index_is_complete_after_a_faulty_stream(text: TokenizerText, faults: EventFaults) -> None:
    faulty = serving(text, event_faults=faults, gpu_blocks=4096)
    async with faulty as (server, session), make_fleet() as fleet:
        static = StaticEndpoint(
            "sim", server.address, server.events_address, server.replay_address, metrics=""
        )
        fleet.add("sim", endpoint_addresses(static, EventsConfig()), {})
        asked: list[int] = []

        async def knows_everything() -> bool:
            known = [
                fleet.atlas.match(fleet.atlas.prefix(array("I", range(first, first + 40)))) for first in asked
            ]
            asked.append(300 + 50 * len(asked))
            assert await ask(session, asked[-1]) == 200
            held = [match["sim"].usable_tokens if "sim" in match else 0 for match in known]
            return len(held) >= N_REQUESTS and held == [32] * len(held)

        await until(knows_everything, what="an index that holds every prompt")


async def test_unreadable_events_are_counted_and_survived_and_leave_no_wrong_answer_unsaid(
    text: TokenizerText, tmp_path: Path
) -> None:
    """Send four servers the same requests, more than their GPUs hold; the events of one are complete.

    An unreadable message is fetched again, so that the index of its server becomes complete. A message with unreadable
    events counts as received: the index of that server is incomplete, and its trust says so.
    """
    faults = {
        "whole": EventFaults(),
        "corrupt": EventFaults(corrupt=0.4),
        "truncate": EventFaults(truncate=0.4),
        "foreign": EventFaults(foreign=0.4),
    }
    expected = dict.fromkeys(faults, "live") | {"foreign": "partial"}
    configs = [
        ServerConfig(name=name, model=MODEL_NAME, gpu_blocks=48, time_scale=0.0, event_faults=each, seed=3)
        for name, each in faults.items()
    ]
    async with Fleet(configs, text) as fleet:
        fleet.write_kvatlas_config(tmp_path / "fleet.yaml", tokenizer=tmp_path, ext_proc="", rest="")
        endpoints = yaml.safe_load((tmp_path / "fleet.yaml").read_text())["endpoints"]
        config = {"model": {"names": [MODEL_NAME]}, "endpoints": endpoints}
        async with serving_kvatlas(config, tmp_path) as served, aiohttp.ClientSession() as session:
            asked: list[int] = []

            async def ask_all() -> None:
                asked.append(300 + 50 * len(asked))
                for server in fleet.servers:
                    assert await ask(session, asked[-1], server.address) == 200

            async def knows_as_much_of_each() -> bool:
                await ask_all()
                held = [await held_tokens(served, name, asked) for name in ("whole", "corrupt", "truncate")]
                return held[0] == held[1] == held[2]

            for _ in range(24):
                await ask_all()
            await until(knows_as_much_of_each, what="the same of the damaged streams as of the whole one")
            assert {0, 32} == set(await held_tokens(served, "whole", asked))

            async def trusts_as_much() -> bool:
                publishers = {
                    name: (await served.get(f"/v1/endpoints/{name}"))["publishers"] for name in faults
                }
                return {name: rows[0]["trust"] for name, rows in publishers.items()} == expected

            await until(trusts_as_much, what=f"the trust {expected}")
            counted = re.findall(
                r'^kvatlas_events_rejected_total{endpoint="(\w+)",reason="(\w+)"} [1-9]',
                await served.metrics(),
                re.MULTILINE,
            )
    assert {name for name, _reason in counted} == {"corrupt", "truncate", "foreign"}


async def held_tokens(served: Served, name: str, asked: list[int]) -> list[int]:
    """Return per prompt the tokens that the server would reuse according to the index."""
    held: list[int] = []
    for first in asked:
        body = {"model": MODEL_NAME, "token_ids": list(range(first, first + 40))}
        instances = (await served.post("/query", body)).get("default", {})
        held.append(instances.get(name, {}).get("longest_matched", 0))
    return held


async def test_late_events_come_in_order(text: TokenizerText) -> None:
    async with serving(text, event_faults=EventFaults(lag_s=0.2)) as (server, session):
        got = await live_batches(server, session, span=N_BATCHES)

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
async def test_requests_fail_as_configured(
    text: TokenizerText, faults: HttpFaults, outcome: int | str
) -> None:
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


async def test_servers_die_and_restart_until_they_are_stopped(tmp_path: Path) -> None:
    config, output = tmp_path / "fleet.yaml", io.StringIO()
    options = SimulateOptions(
        servers=2, cpu_blocks=64, storage=True, restart_every_s=0.1, down_s=0.05, config=config, seed=1
    )
    running = asyncio.create_task(simulate(Console(file=output), options))
    await until(lambda: "is back" in output.getvalue(), what="a restart")
    os.kill(os.getpid(), signal.SIGINT)
    await running

    loaded = load_file(config).config
    assert [tier.name for tier in loaded.tiers] == ["gpu", "cpu", "storage"]
    assert [each.name for each in loaded.endpoints.static] == ["sim-0", "sim-1"]
    assert all(f"http://{each.address} " in output.getvalue() for each in loaded.endpoints.static)
    assert re.search(r"^sim-[01] dies$", output.getvalue(), re.MULTILINE)


def test_command_ends_with_status_0_when_it_is_signalled(tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"

    def stop_when_written() -> None:
        asyncio.run(until(config.exists, what="the configuration"))
        os.kill(os.getpid(), signal.SIGTERM)

    stopper = threading.Thread(target=stop_when_written)
    stopper.start()
    arguments = (
        "--servers 3 --drop-events 0.1 --event-lag 0.5 --refuse 0.2 --slow 0.3 --placeholders --time-scale 0"
    )
    result = CliRunner().invoke(
        app, ["simulate", *arguments.split(), "--config", str(config)], env={"COLUMNS": "200"}
    )
    stopper.join()

    assert result.exit_code == 0
    assert len(re.findall(r"^sim-\d  http://127.0.0.1:\d+  events tcp://", result.stdout, re.MULTILINE)) == 3


def test_command_raises_its_limit_of_open_files(tmp_path: Path) -> None:
    config = tmp_path / "fleet.yaml"
    command = ("kvatlas.app.cli.main", "simulate", "--servers", "4", "--config", str(config))
    process = subprocess.Popen(["sh", "-c", 'ulimit -Sn 40 && exec "$@"', "", sys.executable, "-m", *command])
    asyncio.run(until(lambda: config.exists() or process.poll() is not None, what="the configuration"))
    process.terminate()
    assert process.wait() == 0


def test_every_server_has_the_configured_faults() -> None:
    faults = EventFaults(drop=0.1), HttpFaults(refuse=0.2)
    options = SimulateOptions(servers=3, event_faults=faults[0], http_faults=faults[1], storage=True)

    configs = server_configs(options)

    assert [(each.event_faults, each.http_faults) for each in configs] == [faults] * 3
    assert configs[0].storage is configs[2].storage is not None
