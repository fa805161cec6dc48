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
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import aiohttp

from kvatlas.sim.envoy import find_envoy
from kvatlas.sim.errors import DemoError
from kvatlas.sim.workload import WorkloadSpec

from .errors import CheckError
from .gateway import kvatlas_for, play_kvatlas, play_round_robin
from .model import write_model
from .prediction import Prediction, Predictor
from .probe import Probe
from .report import Findings, render
from .server import CacheOptions, VllmServer, running, vllm_servers

DOCUMENT = Path(__file__).parents[2] / "docs" / "vllm-check.md"

OBSERVED = (
    CacheOptions(gpu_blocks=72, cpu_blocks=120),
    CacheOptions(gpu_blocks=72, cpu_blocks=120, chunk_blocks=2, self_describing=False),
)
"""Small enough that both tiers evict all the time, with the two forms of offload events that differ most."""

ROUTED = CacheOptions(gpu_blocks=100, cpu_blocks=240)
WORKLOAD = WorkloadSpec(
    groups=13, conversations=3, turns=3, system_words=700, user_words=25, reply_tokens=20, concurrency=4
)
"""25 blocks of system prompt, and five of its own at the end of a conversation: 520 blocks in all. A server that keeps half
of the groups needs 260, about what it has; round robin brings nearly all to both. The number of conversations is odd:
with an even one round robin would bring every conversation back to the same of two servers by chance."""

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


@dataclass(frozen=True, slots=True)
class _Observation:
    servers: list[VllmServer]
    predictions: list[Prediction]
    counters: Mapping[str, Mapping[str, int]]
    scrape_s: float


async def check(folder: Path, *, n_requests: int, seed: int) -> Findings:
    """Run everything; `folder` holds `venv` and takes model, logs and recordings.

    Raises:
        CheckError, DemoError: a part did not start, or died.
    """
    write_model(folder / "model")
    observation = await _observe(folder, n_requests=n_requests, seed=seed)
    routed = vllm_servers(folder, (ROUTED, ROUTED))
    _say(f"{WORKLOAD.n_requests} requests through Envoy, round robin")
    round_robin = await play_round_robin(routed, WORKLOAD, progress=_dot)
    _say(f"{WORKLOAD.n_requests} requests through Envoy, with kvatlas")
    kvatlas = await play_kvatlas(routed, WORKLOAD, folder, progress=_dot)
    return Findings(
        versions=await _versions(folder),
        observed=observation.servers,
        predictions=observation.predictions,
        counters=observation.counters,
        scrape_s=observation.scrape_s,
        routed=routed,
        workload=WORKLOAD,
        round_robin=round_robin,
        kvatlas=kvatlas,
    )


async def _observe(folder: Path, *, n_requests: int, seed: int) -> _Observation:
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
        return _Observation(servers, predictor.predictions, counters, await _scrape_s(session, first))


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


def _keep(predictions: list[Prediction], file: Path) -> None:
    file.write_text("".join(json.dumps(asdict(each), default=str) + "\n" for each in predictions))


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


def _dot() -> None:
    print(".", end="", flush=True)


async def _main(arguments: argparse.Namespace) -> int:
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    findings = await check(arguments.folder, n_requests=arguments.requests, seed=arguments.seed)
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
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="where the result is written")
    try:
        return asyncio.run(_main(parser.parse_args()))
    except (CheckError, DemoError) as error:
        print(f"vllm-check: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


if __name__ == "__main__":
    sys.exit(main())
