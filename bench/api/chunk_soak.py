"""Streamed responses that end, are reset, stall and reconnect, for long; fails if anything is left behind.

`chunkload` is the gateway, as in chunks.py: one of them sends chunks at a steady rate, ends and comes back; beside it others are
stopped for seconds and go on, or are killed within their streams, and calls of one connection are cancelled. At the end no response
of the steady gateway may have come up short, nothing may be open or held, and memory must have stayed where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import ssl
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import grpc
import grpc.aio

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE

from ..common.benchmark import Benchmark
from ..common.processes import rss_bytes
from ..common.server import Server, metric
from ..common.tables import Table
from . import reference
from .chunk_clients import BOTH_STREAMED
from .extproc_load import CLIENT_CPU, HEADERS
from .soak_memory import grown

EVERY_S = 2.0
"""Time between two samples of memory."""

STEADY_S = 20.0
"""Length of a stream of the steady gateway."""

LEFT_S = 30.0
"""Longest time until nothing is open or held."""

BODY = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}'
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":" token"}}]}\n\n'


class Gateways:
    """What sends load to one server.

    Args:
        binary: `chunkload`.
        address: of the server.
        tls: whether it speaks TLS.

    Attributes:
        n_steady: times that the steady gateway came back.
        n_cut: gateways that were killed or stopped, and calls that were cancelled.
        failures: what went wrong.
    """

    def __init__(self, binary: Path, address: str, *, tls: bool) -> None:
        self._binary, self._address, self._tls = binary, address, tls
        self.n_steady = self.n_cut = 0
        self.failures: list[str] = []

    async def steady(self, n_streams: int, per_second: float) -> None:
        """Stream whole responses, and connect again."""
        rate = per_second / n_streams
        async with self._gateway(n_streams, rate, STEADY_S) as gateway:
            output = (await gateway.communicate())[0].decode().strip()
        self.n_steady += 1
        if '"short": 0}' not in output or "\n" in output:
            self.failures.append(output[:300])

    async def killed(self) -> None:
        """Lose a gateway within its streams."""
        async with self._gateway(64, 20, 60):
            await asyncio.sleep(random.uniform(2, 8))
        self.n_cut += 1

    async def stalled(self) -> None:
        """Have a gateway that neither reads nor writes for a while."""
        async with self._gateway(64, 40, 15) as gateway:
            await asyncio.sleep(random.uniform(2, 5))
            gateway.send_signal(signal.SIGSTOP)
            await asyncio.sleep(5)
            gateway.send_signal(signal.SIGCONT)
            await gateway.communicate()
        self.n_cut += 1

    async def cancelled(self) -> None:
        """Reset calls within their responses."""
        async with await self._channel() as channel:
            process: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
                f"/{EXT_PROC_SERVICE}/Process"
            )
            for _ in range(20):
                calls = [process() for _ in range(10)]
                for call in calls:
                    for message in _response(random.randrange(20)):
                        await call.write(message)
                for call in calls:
                    await call.read()
                    call.cancel()
                self.n_cut += len(calls)
                await asyncio.sleep(0.2)

    async def _channel(self) -> grpc.aio.Channel:
        if not self._tls:
            return grpc.aio.insecure_channel(self._address)
        host, _, port = self._address.rpartition(":")
        certificate = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        credentials = grpc.ssl_channel_credentials(certificate.encode())
        return grpc.aio.secure_channel(
            self._address, credentials, options=[("grpc.ssl_target_name_override", "localhost")]
        )

    @contextlib.asynccontextmanager
    async def _gateway(
        self, n_streams: int, rate: float, seconds: float
    ) -> AsyncGenerator[asyncio.subprocess.Process]:
        numbers = {"streams": n_streams, "conns": 2, "rate": rate, "chunks": int(rate * seconds)}
        gateway = await asyncio.create_subprocess_exec(
            *("taskset", "--cpu-list", str(CLIENT_CPU), str(self._binary), "-addr", self._address),
            *(f"-{name}={value}" for name, value in numbers.items()),
            *(["-tls"] if self._tls else []),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield gateway
        finally:
            if gateway.returncode is None:
                gateway.kill()
            await gateway.wait()


def _response(n_chunks: int) -> Sequence[bytes]:
    headers = pb.HeaderMap(
        headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in HEADERS]
    )
    messages = [
        pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers), protocol_config=BOTH_STREAMED),
        pb.ProcessingRequest(request_body=pb.HttpBody(body=BODY, end_of_stream=True)),
        pb.ProcessingRequest(response_headers=pb.HttpHeaders()),
        *(pb.ProcessingRequest(response_body=pb.HttpBody(body=CHUNK)) for _ in range(n_chunks)),
    ]
    return [message.SerializeToString() for message in messages]


async def _again(work: Callable[[], Awaitable[None]], ends_at: float) -> None:
    while time.monotonic() < ends_at:
        await work()


def _n_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


async def _sample(pid: int, memory: list[float], files: list[float]) -> None:
    while True:
        memory.append(rss_bytes(pid))
        files.append(_n_files(pid))
        await asyncio.sleep(EVERY_S)


async def _left(session: aiohttp.ClientSession) -> list[str]:
    """Return what is open or held though all gateways are gone."""
    left = ["kvatlas_open_streams", "kvatlas_pending_requests", "kvatlas_held_bytes"]
    ends_at = time.monotonic() + LEFT_S
    while left and time.monotonic() < ends_at:
        left = [name for name in left if await metric(session, name)]
        await asyncio.sleep(0.2)
    return left


async def _soak(options: argparse.Namespace, binary: Path) -> list[str]:
    memory, files = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        sections: dict[str, dict[str, object]] = {
            "extProc": {"threads": options.threads},
            "server": {"tls": {"selfSigned": options.tls, "http": False}},
        }
        server = Server(Path(folder), sections=sections)
        async with server.running(), aiohttp.ClientSession(server.rest) as session:
            gateways = Gateways(binary, server.address, tls=options.tls)
            ends_at = time.monotonic() + options.minutes * 60
            sampling = asyncio.create_task(_sample(server.process.pid, memory, files))
            await asyncio.gather(
                _again(lambda: gateways.steady(512, options.rate), ends_at),
                *(_again(each, ends_at) for each in (gateways.killed, gateways.stalled, gateways.cancelled)),
            )
            left = await _left(session)
            sampling.cancel()
            total = await metric(session, r"kvatlas_requests_total\{.*\}")
    print(f"{gateways.n_steady} steady runs, {gateways.n_cut} faults, {total:.0f} requests", flush=True)
    print(f"memory, MB: {[round(each / 2**20) for each in memory[:: max(1, len(memory) // 12)]]}", flush=True)
    return [*gateways.failures, *left, *grown(memory, files, every_s=EVERY_S)]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this check."""
    parser.add_argument("--minutes", type=float, default=30.0, help="how long (30)")
    parser.add_argument(
        "--rate", type=float, default=20_000, help="chunks a second of the steady gateway (20000)"
    )
    parser.add_argument("--tls", action="store_true", help="over TLS")
    parser.add_argument("--threads", type=int, default=2, help="of kvatlas for connections (2)")


def run(options: argparse.Namespace) -> list[Table]:
    """Run it; exits with status 1 if anything is left behind."""
    where = reference.folder()
    if where is None:
        raise SystemExit(f"needs {reference.VARIABLE}, the folder of the reference picker with its chunkload")
    wrong = asyncio.run(_run(options, where))
    if wrong:
        raise SystemExit("\n".join(wrong))
    print("nothing is left behind")
    return []


async def _run(options: argparse.Namespace, where: Path) -> list[str]:
    binaries = await asyncio.create_subprocess_exec(where / "get.sh", stdout=asyncio.subprocess.PIPE)
    return await _soak(options, Path((await binaries.communicate())[0].decode().strip()) / "chunkload")


BENCHMARK = Benchmark(name="chunk-soak", about=__doc__, add_options=add_options, run=run, has_tables=False)
