"""Check of kvatlas against two real vLLM servers: its predictions, and the gain of its routing.

Use: PYTHONPATH=tests python -m vllm_check.check DIR (see run.sh). Exit status 0 when everything is as it should be, 1 when not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median

import aiohttp

from kvatlas.sim.envoy import find_envoy
from kvatlas.sim.errors import DemoError

from .concurrency import CONCURRENT, Audit, ask_at_once
from .errors import CheckError
from .gateway import kvatlas_for
from .model import COSTLY, TINY, write_model
from .prediction import Prediction, Predictor
from .probe import Probe
from .report import Findings, render
from .report_predictions import Observation
from .routing import (
    LONG_REPLIES,
    ROUND_ROBIN,
    ROUTED,
    WEIGHTS,
    WORKLOAD,
    Arm,
    Run,
    fill,
    latency_arm,
    route_all,
)
from .server import ServerOptions, VllmServer, running, vllm_servers

DOCUMENT = Path(__file__).parents[2] / "docs" / "vllm-check.md"

LATENCY = Path(__file__).parent / "latency.yaml"

OBSERVED = (
    ServerOptions(gpu_blocks=72, cpu_blocks=120),
    ServerOptions(gpu_blocks=72, cpu_blocks=120, chunk_blocks=2, self_describing=False),
)
"""Small enough that both tiers evict all the time, with the two forms of offload events that differ most."""

_N_SCRAPES = 25
_TROUBLE = (
    "unknown_removals",
    "block_size_mismatches",
    "pending_dropped",
    "parked",
    "lost",
    "replay_failures",
)
"""Counters of one publisher that stay 0 if all its events could be applied."""


async def check(
    folder: Path, *, n_requests: int, n_at_once: int, seed: int, latency: Arm, n_seeds: int
) -> Findings:
    """Run everything; `folder` holds `venv` and takes models, logs and recordings.

    Args:
        folder: as above.
        n_requests: of the sequential part.
        n_at_once: of each level of the concurrent part.
        seed: of these parts.
        latency: policy that is compared with the default one and with round robin.
        n_seeds: of the routed part.

    Raises:
        CheckError, DemoError: a part did not start, or died.
    """
    for shape in (TINY, COSTLY):
        write_model(folder / shape.name, shape)
    observation = await _observe(folder, n_requests=n_requests, seed=seed)
    audits = await _at_once(folder, n_requests=n_at_once, seed=seed)
    routed = vllm_servers(folder, ROUTED)
    runs, replied = await _route(routed, folder, latency, n_seeds=n_seeds)
    return Findings(
        versions=await _versions(folder),
        observation=observation,
        audits=audits,
        routed=routed,
        runs=runs,
        replied=replied,
    )


async def _observe(folder: Path, *, n_requests: int, seed: int) -> Observation:
    """Run the sequential part: two thirds undisturbed, then a cache reset, then a restart."""
    servers = vllm_servers(folder, OBSERVED)
    first, second = servers
    async with AsyncExitStack() as stack:
        _say("starting two vLLM servers")
        await stack.enter_async_context(running(servers))
        kvatlas = await stack.enter_async_context(kvatlas_for(servers, folder))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        probes = [
            await stack.enter_async_context(Probe(server.events, folder / f"{server.name}-events.jsonl"))
            for server in servers
        ]
        predictor = Predictor(session, kvatlas.url, list(zip(servers, probes, strict=True)), seed=seed)
        stack.callback(_keep, predictor.predictions, folder / "predictions.jsonl")
        _say(f"{n_requests} requests straight to the servers")
        await predictor.run(n_requests * 2 // 3)
        await predictor.reset(first)
        await predictor.run(n_requests // 6)
        _say(f"restarting {second.name}")
        await predictor.restart(second)
        await predictor.run(n_requests - len(predictor.predictions))
        kvatlas.process.check()
        counters = await _counters(session, kvatlas.url)
        return Observation(servers, predictor.predictions, counters, await _scrape_s(session, first))


async def _at_once(folder: Path, *, n_requests: int, seed: int) -> list[Audit]:
    servers = vllm_servers(folder, CONCURRENT)
    _say("starting servers for many requests at once")
    async with running(servers):
        audits = await ask_at_once(servers, folder, n_requests=n_requests, seed=seed, progress=_say)
    _keep(audits, folder / "audits.jsonl")
    return audits


async def _route(
    servers: list[VllmServer], folder: Path, latency: Arm, *, n_seeds: int
) -> tuple[list[Run], list[Run]]:
    """Return the runs of all policies with short replies, and those of one with long replies and half as many seeds."""
    _say("starting servers with a costly model")
    arms = (ROUND_ROBIN, WEIGHTS, latency)
    async with running(servers):
        await fill(servers, folder)
        runs = await route_all(servers, WORKLOAD, arms, folder, seeds=range(n_seeds), progress=_say)
        half = range((n_seeds + 1) // 2)
        replied = await route_all(servers, LONG_REPLIES, (latency,), folder, seeds=half, progress=_say)
    _keep([*runs, *replied], folder / "runs.jsonl")
    return runs, replied


async def _counters(session: aiohttp.ClientSession, kvatlas: str) -> Mapping[str, Mapping[str, int]]:
    async with session.get(f"{kvatlas}/v1/endpoints") as answer:
        endpoints = (await answer.json())["endpoints"]
    return {
        endpoint["name"]: {name: endpoint["publishers"][0]["counters"][name] for name in _TROUBLE}
        for endpoint in endpoints
    }


async def _scrape_s(session: aiohttp.ClientSession, server: VllmServer) -> float:
    """Return the median time of an idle server for one response of /metrics."""
    times: list[float] = []
    for _ in range(_N_SCRAPES):
        started = time.monotonic()
        async with session.get(f"{server.url}/metrics") as answer:
            await answer.read()
        times.append(time.monotonic() - started)
    return median(times)


def _keep(rows: Sequence[Prediction | Audit | Run], file: Path) -> None:
    file.write_text("".join(json.dumps(asdict(each), default=str) + "\n" for each in rows))


async def _versions(folder: Path) -> dict[str, str]:
    code = "import platform, importlib.metadata as m; print(m.version('vllm'), m.version('torch'), platform.python_version())"
    vllm, torch, python = (await _output(folder / "venv" / "bin" / "python", "-c", code)).split()
    envoy = (await _output(find_envoy(), "--version")).rpartition("version: ")[2].split("/")[1]
    return {"kvatlas": version("kvatlas"), "vLLM": vllm, "torch": torch, "Envoy": envoy, "Python": python}


async def _output(program: Path, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode:
        raise CheckError(f"{program.name} ended with status {process.returncode}")
    return output.decode().strip()


def _say(text: str) -> None:
    print(f"\nvllm-check: {text}", flush=True)


async def _main(arguments: argparse.Namespace) -> int:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    findings = await check(
        arguments.folder,
        n_requests=arguments.requests,
        n_at_once=arguments.at_once,
        seed=arguments.seed,
        latency=latency_arm(arguments.latency),
        n_seeds=arguments.seeds,
    )
    document = render(findings)
    arguments.document.write_text(document)
    print("\n" + document, flush=True)
    return 0 if findings.passed else 1


def main() -> int:
    """Run the check; returns the exit status."""
    parser = argparse.ArgumentParser(description="kvatlas against two real vLLM servers")
    parser.add_argument("folder", type=Path, help="has vLLM in venv; takes logs and recordings")
    parser.add_argument(
        "--requests", type=int, default=240, help="of the sequential part (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the sequential part (default %(default)s)")
    parser.add_argument(
        "--at-once",
        type=int,
        default=200,
        help="requests of each level of the concurrent part (default %(default)s)",
    )
    parser.add_argument(
        "--latency",
        type=Path,
        default=LATENCY,
        help="sections of kvatlas' configuration with the policy to compare",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=4,
        help="of the routed part, half of them also with long replies (default %(default)s)",
    )
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where the result is written")
    arguments = parser.parse_args()
    if arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: want at least 1")
    try:
        return asyncio.run(_main(arguments))
    except (CheckError, DemoError) as error:
        print(f"vllm-check: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
