"""Cost of the cluster's changes: pods created, flapping and listed at start, and memory per pod.

The API server is the tests' double, in a process of its own (`cluster_api.py`), over real HTTP; each pod is 8 kB of JSON. kvatlas
is a whole `kvatlas serve`, alone in its process. CPU time is the kernel's, over all its threads, less what the process uses in
the same time when nothing changes. Nothing listens at the pods' addresses, and scraping is slowed down to once an hour.
Created: all pods at once; a decision is the time until ext-proc answered a request meanwhile, one request after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import msgspec

from kvatlas.sim.kvatlas_process import KVAtlasProcess

from ..common.benchmark import Benchmark
from ..common.processes import cpu_s, raise_file_limit, rss_bytes
from ..common.server import CHANNEL, send
from ..common.tables import Table

HERE = Path(__file__).parent
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}'
BETWEEN_DECISIONS_S = 0.02
RATES = 50, 500
"""Changes per second: a usual rate, in which each change also wakes an idle process, and one of a large rollout."""
SETTLING_S = 3.0
"""Time for the first scrapes of new endpoints, and for measuring an idle process."""
_COUNT = re.compile(r"the cluster has (\d+) endpoint")


class Api:
    """The API server's process."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self._process, self.url = process, url

    async def do(self, command: str, first: int, last: int) -> None:
        """Perform a command of `cluster_api.py`, and wait until it is done.

        Raises:
            SystemExit: the process died.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise SystemExit("the API server has no pipes")
        self._process.stdin.write(f"{command} {first} {last}\n".encode())
        if await self._process.stdout.readline() != b"done\n":
            raise SystemExit("the API server died; its own message is above")


@asynccontextmanager
async def api_server(*, with_events: bool) -> AsyncGenerator[Api]:
    """Run the API server with a pool and no pods."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(HERE / "cluster_api.py"), *(["--events"] if with_events else [])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(HERE.parents[1] / "tests")},
    )
    try:
        url = await process.stdout.readline() if process.stdout else b""
        yield Api(process, url.decode().strip())
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


class Picker:
    """A `kvatlas serve` that follows the pool."""

    def __init__(self, api: Api, folder: Path) -> None:
        kubeconfig = {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": api.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "namespace": "ns"}}],
        }
        (folder / "kubeconfig").write_bytes(msgspec.yaml.encode(kubeconfig))
        config = {
            "apiVersion": "kvatlas/v1",
            "kind": "KVAtlasConfig",
            "server": {"extProc": "127.0.0.1:0", "rest": "127.0.0.1:0", "health": "", "metrics": ""},
            "metricsScrape": {"interval": "1h", "staleAfter": "2h"},
            "endpoints": {"kubernetes": {"inferencePool": "pool", "kubeconfig": str(folder / "kubeconfig")}},
        }
        file = folder / "kvatlas.yaml"
        file.write_bytes(msgspec.yaml.encode(config))
        self._log = folder / "kvatlas.log"
        self.process = KVAtlasProcess(file, log=self._log)

    @property
    def cpu_s(self) -> float:
        """CPU time so far."""
        return cpu_s(self.process.pid)

    async def until_endpoints(self, n: int) -> None:
        """Wait until the log says that the cluster has so many endpoints; unlike a request, this costs it nothing."""
        while _COUNT.findall(self._log.read_text())[-1:] != [str(n)]:
            self.process.check()
            await asyncio.sleep(0.1)

    async def idle_cores(self, seconds: float) -> float:
        """Return the share of a core that it uses while nothing changes."""
        before = self.cpu_s
        await asyncio.sleep(seconds)
        return (self.cpu_s - before) / seconds

    async def decisions_ms(self, work: asyncio.Task[None]) -> list[float]:
        """Return the times of decisions, one after the other, until `work` is done, in milliseconds."""
        times: list[float] = []
        address = "{}:{}".format(*self.process.addresses["extProc"])
        async with grpc.aio.insecure_channel(address, CHANNEL) as channel:
            await send(channel, BODY, len(BODY))
            while not work.done():
                times.append(1000 * await send(channel, BODY, len(BODY)))
                await asyncio.sleep(BETWEEN_DECISIONS_S)
        await work
        return times


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures with one number of pods, less what one pod uses."""

    start_s: float
    start_cpu_s: float
    created_cpu_s: float
    decisions_ms: tuple[float, float, float]
    ready_ms: tuple[float, ...]
    unread_ms: tuple[float, ...]
    pod_kb: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--pods", type=int, nargs="+", default=[10, 100, 1000, 5000], help="(10 100 1000 5000)"
    )
    parser.add_argument("--seconds", type=int, default=5, help="of changes of each kind, at each rate (5)")
    parser.add_argument(
        "--events", action="store_true", help="the pods announce KV events, where nothing listens"
    )


def run(options: argparse.Namespace) -> list[Table]:
    """Measure every number of pods."""
    raise_file_limit()
    found = {n_pods: asyncio.run(_with_pods(n_pods, options)) for n_pods in options.pods}
    cpu = Table(
        name="cpu",
        title="CPU time",
        headings=(
            "pods",
            "all created at once, s",
            *(f"change of readiness at {rate}/s, ms" for rate in RATES),
            *(f"change that nothing reads at {rate}/s, ms" for rate in RATES),
            "start with them, s",
        ),
        rows=tuple(
            (n, each.created_cpu_s, *each.ready_ms, *each.unread_ms, each.start_cpu_s)
            for n, each in found.items()
        ),
    )
    rest = Table(
        name="times",
        title="Times and memory",
        headings=(
            "pods",
            "decision, ms",
            "slowest of 3 s, ms",
            "slowest while all are created, ms",
            "start with them, s",
            "memory per pod, kB",
        ),
        rows=tuple((n, *each.decisions_ms, each.start_s, each.pod_kb) for n, each in found.items()),
    )
    return [cpu, rest]


async def _with_pods(n_pods: int, options: argparse.Namespace) -> Figures:
    async with api_server(with_events=options.events) as api:
        await api.do("put", 0, 0)
        with tempfile.TemporaryDirectory() as folder:
            picker = Picker(api, Path(folder))
            base = await _start(picker)
            try:
                created_cpu_s, pod_kb = await _created(api, picker, n_pods)
                idle = await picker.idle_cores(SETTLING_S)
                ready_ms = await _changes_ms(api, picker, "ready", idle, options)
                unread_ms = await _changes_ms(api, picker, "unread", idle, options)
                decisions_ms = await _decisions_ms(api, picker, n_pods)
            finally:
                await picker.process.stop()
            start = await _start(picker)
            await picker.process.stop()
    return Figures(
        start_s=start[0] - base[0],
        start_cpu_s=start[1] - base[1],
        created_cpu_s=created_cpu_s,
        decisions_ms=decisions_ms,
        ready_ms=ready_ms,
        unread_ms=unread_ms,
        pod_kb=pod_kb,
    )


async def _start(picker: Picker) -> tuple[float, float]:
    """Start it; return the time until it was ready, and its CPU time by then."""
    begun = time.monotonic()
    await picker.process.start()
    return time.monotonic() - begun, picker.cpu_s


async def _created(api: Api, picker: Picker, n_pods: int) -> tuple[float, float]:
    """Create the pods; return the CPU time, and the memory per pod in kB."""
    idle, begun, cpu = await picker.idle_cores(SETTLING_S), time.monotonic(), picker.cpu_s
    memory = rss_bytes(picker.process.pid)
    await api.do("put", 1, n_pods)
    await picker.until_endpoints(n_pods + 1)
    await asyncio.sleep(SETTLING_S)
    spent_s = picker.cpu_s - cpu - idle * (time.monotonic() - begun)
    return spent_s, (rss_bytes(picker.process.pid) - memory) / n_pods / 1000


async def _changes_ms(
    api: Api, picker: Picker, kind: str, idle: float, options: argparse.Namespace
) -> tuple[float, ...]:
    """Return the CPU time per change of this kind, at each of `RATES`."""
    found: list[float] = []
    for rate in RATES:
        begun, cpu, n = time.monotonic(), picker.cpu_s, options.seconds * rate
        await api.do(kind, n, rate)
        await asyncio.sleep(SETTLING_S)
        found.append(1000 * (picker.cpu_s - cpu - idle * (time.monotonic() - begun)) / n)
    return tuple(found)


async def _decisions_ms(api: Api, picker: Picker, n_pods: int) -> tuple[float, float, float]:
    """Delete the pods and create them again; return the median and slowest decision later, and the slowest meanwhile."""

    async def create() -> None:
        await api.do("put", 1, n_pods)
        await picker.until_endpoints(n_pods + 1)

    await api.do("delete", 1, n_pods)
    await picker.until_endpoints(1)
    meanwhile = await picker.decisions_ms(asyncio.create_task(create()))
    usual = await picker.decisions_ms(asyncio.create_task(asyncio.sleep(SETTLING_S)))
    return statistics.median(usual), max(usual), max(meanwhile)


BENCHMARK = Benchmark(name="cluster", about=__doc__, add_options=add_options, run=run)
