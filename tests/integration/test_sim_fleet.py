"""A fleet of simulated servers, and a workload run against it."""

from __future__ import annotations

import importlib.resources
import socket
from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.loader import load_config
from kvatlas.sim import demo
from kvatlas.sim.demo_model import MODEL_NAME, write_demo_model
from kvatlas.sim.fleet import Fleet
from kvatlas.sim.held_port import HeldPort
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig
from kvatlas.sim.workload import WorkloadSpec, read_tier_tokens, run_workload

SPEC = WorkloadSpec(
    groups=2, conversations=2, turns=3, system_words=100, user_words=20, reply_tokens=8, concurrency=3
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_demo_model(folder)
    return folder


def make_fleet(model: Path, n_servers: int, *, gpu_blocks: int = 64, cpu_blocks: int = 64) -> Fleet:
    configs = [
        ServerConfig(
            name=f"sim-{number}",
            model=MODEL_NAME,
            gpu_blocks=gpu_blocks,
            cpu_blocks=cpu_blocks,
            time_scale=0.0,
        )
        for number in range(n_servers)
    ]
    return Fleet(configs, TokenizerText(model))


async def test_workload_measures_the_same_as_the_servers(model: Path) -> None:
    n_done = 0

    def progress() -> None:
        nonlocal n_done
        n_done += 1

    async with make_fleet(model, 1) as fleet:
        address = f"http://{fleet.servers[0].address}"
        result = await run_workload(address, MODEL_NAME, SPEC, progress=progress)
        tiers = await read_tier_tokens(fleet.metrics_urls)

    assert (len(result.turns), result.errors, n_done) == (12, [], 12)
    assert tiers.gpu + tiers.cpu == sum(turn.cached_tokens for turn in result.turns)
    assert 0.5 < result.hit_rate < 1
    assert all(0 < turn.ttft_s <= turn.total_s for turn in result.turns)
    assert result.requests_by_server == {"sim-0": 12}


async def test_workload_is_the_same_for_the_same_seed(model: Path) -> None:
    prompts: list[list[tuple[int, int]]] = []
    for _ in range(2):
        async with make_fleet(model, 1) as fleet:
            result = await run_workload(f"http://{fleet.servers[0].address}", MODEL_NAME, SPEC)
        prompts.append(sorted((turn.prompt_tokens, turn.cached_tokens) for turn in result.turns))

    assert [n for n, _ in prompts[0]] == [n for n, _ in prompts[1]]


async def test_shipped_demo_file_equals_that_of_the_demo_except_for_addresses(
    model: Path, tmp_path: Path
) -> None:
    shipped = load_config(Path(str(importlib.resources.files("kvatlas.configs"))) / "demo.yaml")
    file = tmp_path / "kvatlas.yaml"
    async with Fleet(demo.servers(), TokenizerText(model)) as fleet:
        listeners = shipped.server
        fleet.write_kvatlas_config(
            file, tokenizer=tmp_path / "model", ext_proc=listeners.ext_proc, rest=listeners.rest
        )
        written = load_config(file)

    names = [[endpoint.name for endpoint in each.endpoints.static] for each in (shipped, written)]
    assert names[0] == names[1]
    changes = {"endpoints": shipped.endpoints, "model": shipped.model}
    assert msgspec.structs.replace(written, **changes) == shipped
    assert written.model.names == shipped.model.names


async def test_failed_requests_are_reported_and_end_their_conversation(model: Path) -> None:
    async with make_fleet(model, 1) as fleet:
        result = await run_workload(f"http://{fleet.servers[0].address}", "no-such-model", SPEC)

    assert len(result.errors) == 4
    assert all("status 404" in error for error in result.errors)
    assert result.turns == []


async def test_unreachable_gateway_is_an_error_not_an_exception() -> None:
    closed = HeldPort()
    result = await run_workload(f"http://127.0.0.1:{closed.number}", MODEL_NAME, SPEC)

    assert len(result.errors) == 4


async def test_written_configuration_loads_and_names_every_server(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "kvatlas.yaml"
    async with make_fleet(model, 2) as fleet:
        fleet.write_kvatlas_config(file, tokenizer=model, ext_proc="127.0.0.1:7001", rest="127.0.0.1:7002")
        config = load_config(file)
        servers = [(server.address, server.events_address) for server in fleet.servers]

    assert (config.server.ext_proc, config.server.rest) == ("127.0.0.1:7001", "127.0.0.1:7002")
    assert (config.model.names, config.model.tokenizer) == ((MODEL_NAME,), str(model))
    assert [(one.address, one.events) for one in config.endpoints.static] == servers
    assert [tier.name for tier in config.tiers] == ["gpu", "cpu"]
    assert config.tiers[1].lru_capacity_per_server == 64


async def test_fleet_leaves_nothing_listening_when_a_server_cannot_start(model: Path) -> None:
    fleet = make_fleet(model, 2)
    await fleet.start()
    await fleet.stop()
    with socket.create_server(("127.0.0.1", fleet.servers[1].ports.http)):
        with pytest.raises(OSError, match="in use"):
            await fleet.start()

        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", fleet.servers[0].ports.http), timeout=1)
