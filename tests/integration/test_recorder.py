"""Requests recorded by a running `kvatlas serve`, and a replay of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from kvatlas.sim import hardware
from kvatlas.sim.demo_model import MODEL_NAME
from kvatlas.sim.server import ServerConfig
from kvatlas.sim.traces.mooncake import read_trace
from support.fleets import make_endpoint
from support.gateway import gateway
from support.local_process import local_process
from support.relay import relaying
from support.waiting import until

GPU_BLOCKS, CPU_BLOCKS, N_SERVERS = 160, 400, 3
TIERS = [
    {"name": "gpu", "media": ["GPU"]},
    {"name": "cpu", "media": ["CPU"], "lruCapacityPerServer": CPU_BLOCKS},
]
N_REQUESTS = 90


def servers() -> list[ServerConfig]:
    return [
        ServerConfig(
            name=f"sim-{number}",
            model=MODEL_NAME,
            gpu_blocks=GPU_BLOCKS,
            cpu_blocks=CPU_BLOCKS,
            time_scale=0.001,
        )
        for number in range(N_SERVERS)
    ]


def prompts() -> list[list[int]]:
    """Return questions after nine openings, more than the tiers of two servers hold; some are repeated."""
    rng = Random(3)
    openings = [[rng.randrange(400) for _ in range(1000)] for _ in range(9)]
    questions = [[rng.randrange(400) for _ in range(rng.randrange(20, 200))] for _ in range(60)]
    return [rng.choice(openings) + rng.choice(questions) for _ in range(N_REQUESTS)]


def kvatlas(*arguments: str) -> tuple[int, str, str]:
    """Run a command; return exit status, stdout and stderr."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def replayed(trace: Path, config: Path) -> list[float]:
    """Return hit rates by the same configuration and by chance, on engines like the recorded ones.

    Arrivals are slowed down, since the simulated engines here respond at once. Ties are broken at random, so several
    replays give the expected range.
    """
    gib = CPU_BLOCKS / hardware.blocks_in(1.0)
    status, stdout, stderr = kvatlas(
        *("replay", str(trace), "--config", str(config), "--policy", "random", "--cpu-gb", str(gib)),
        *("--gpu-blocks", str(GPU_BLOCKS), "--endpoints", str(N_SERVERS), "--granularity", "1"),
        *("--speed", "0.02", "--seeds", "4", "--json"),
    )
    assert status == 0, stderr
    figures = {outcome["policy"]: outcome["figures"] for outcome in json.loads(stdout)}
    del figures["bound"]
    return [each["hitRate"]["mean"] for each in figures.values()]


@pytest.mark.slow
async def test_replay_of_a_recording_has_the_hit_rate_of_the_fleet(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    recorder = {"folder": str(folder), "blockSize": 16}
    async with relaying(tmp_path, servers(), tiers=TIERS, recorder=recorder) as relay:
        for number, prompt in enumerate(prompts()):
            await relay.complete(prompt, max_tokens=2 + number % 3)

        async def is_written() -> bool:
            state = await relay.gate.served.get("/v1/recorder")
            return bool(state["requests"]["recorded"] == N_REQUESTS)

        await until(is_written, what="every request in the trace")
        state = await asyncio.to_thread(kvatlas, "recorder", "--url", relay.gate.url)
        metrics = await relay.gate.served.metrics()
        live = relay.cached_tokens / relay.prompt_tokens
    (file,) = folder.iterdir()
    trace = read_trace(file)
    same, by_chance = await asyncio.to_thread(replayed, file, tmp_path / "kvatlas.yaml")

    assert [request.n_prompt for request in trace.requests] == [len(prompt) for prompt in prompts()]
    assert [request.n_output for request in trace.requests[:4]] == [2, 3, 4, 2]
    assert same == pytest.approx(live, abs=0.1)
    assert by_chance < live - 0.2
    assert f"{N_REQUESTS} requests recorded" in state[1]
    assert f'kvatlas_recorder_requests_total{{outcome="recorded"}} {N_REQUESTS}.0' in metrics


@pytest.mark.slow
async def test_requests_of_the_last_moment_are_written_and_no_text_or_name_with_them(tmp_path: Path) -> None:
    """Hide the response, so that its length is unknown."""
    folder = tmp_path / "traces"
    async with gateway(tmp_path, recorder={"folder": "traces"}) as gate:
        for n_tokens in (100, 30, 130):
            request = await gate.request(n_tokens, ("x-request-id", "secret-id"))
            await request.call.done_writing()
            await request.call.code()
    (file,) = folder.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]

    assert [line["input_length"] for line in lines] == [100, 30, 130]
    assert [line["output_length"] for line in lines] == [None] * 3
    assert [len(line["hash_ids"]) for line in lines] == [2, 1, 3]
    assert lines[0]["hash_ids"][0] == lines[2]["hash_ids"][0] != lines[1]["hash_ids"][0]
    assert lines[0]["block_size"] == 64
    assert {key for line in lines for key in line} == {
        *("timestamp", "input_length", "output_length", "hash_ids", "block_size")
    }
    assert file.stat().st_mode & 0o777 == 0o600


async def test_requests_continue_and_the_folder_is_reported_when_it_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    recorder = {"folder": str(tmp_path / "file" / "traces")}
    async with local_process(make_endpoint("a", events=""), recorder=recorder) as process:
        await process.send_requests(2)
        check = await process.until_state("traces-written", "fail")
        status, stdout, _ = await asyncio.to_thread(kvatlas, "recorder", "--url", process.url)
        _, as_json, _ = await asyncio.to_thread(kvatlas, "recorder", "--url", process.url, "--json")
    assert "2 requests are lost" in check["evidence"][0]
    assert (status, "Not a directory" in stdout) == (1, True)
    assert json.loads(as_json)["requests"]["not_written"] == 2


async def test_nothing_is_recorded_without_folder() -> None:
    async with local_process(make_endpoint("a", events="")) as process:
        await process.send_requests(1)
        status, stdout, _ = await asyncio.to_thread(kvatlas, "recorder", "--url", process.url)
        async with process.session.get(f"{process.url}/metrics") as answer:
            metrics = await answer.text()
    assert (status, stdout) == (0, "nothing is recorded; recorder.folder names where to\n")
    assert "kvatlas_recorder_requests_total{" not in metrics
