"""Decisions per second over ext-proc on one core, beside a gRPC server that does nothing.

`no-op` is a server of the gRPC library that reads and sends as many messages and looks at none. `grpc` and `http2` are kvatlas's
ext-proc server on its two transports, with one address for every request. `kvatlas` is `kvatlas serve` with 8 endpoints that
publish events: every request is a chat that is rendered, tokenized, matched and scored; it is the same chat each time, so that
its text is encoded once. Each server runs on one core and h2load (Debian: nghttp2-client) on another, with one connection, as
Envoy has; the servers take turns, and the best round of each counts. A second part sends the same requests with wrk through a
real Envoy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE
from kvatlas.sim.envoy import EnvoyConfig, EnvoyProcess, find_envoy, gateway_config, without_picker
from kvatlas.sim.held_port import HeldPort

from ..common.benchmark import Benchmark
from ..common.conversations import chat_body, text
from ..common.processes import child, receive
from ..common.server import PATH, Server, metric
from ..common.tables import Cell, Table
from .extproc_servers import HOST, SERVERS, Work, serve

SERVER_CPU, CLIENT_CPU = 0, 1
CONCURRENT_REQUESTS = 64
MODES = {
    "BUFFERED": pb.ProcessingMode.BUFFERED,
    "FULL_DUPLEX_STREAMED": pb.ProcessingMode.FULL_DUPLEX_STREAMED,
}
HEADERS = (
    (":authority", "gateway:8080"),
    (":path", PATH),
    (":method", "POST"),
    (":scheme", "http"),
    ("user-agent", "openai-python/2.0"),
    ("accept", "application/json"),
    ("content-type", "application/json"),
    ("x-forwarded-proto", "http"),
    ("x-request-id", "6b1c9c3e-2f5b-4c8e-8d59-1d1f0c6a7b11"),
)
"""The headers of a client's request, as Envoy forwards them."""


@dataclass(frozen=True)
class Running:
    """A server: its port, and a call that returns its work so far."""

    port: int
    work: Callable[[], Awaitable[Work]]


@dataclass(frozen=True)
class Rate:
    """Requests per second, and microseconds of CPU time of the server per request."""

    per_second: float
    cpu_us: float


def conversation(mode: str, body: bytes) -> bytes:
    """Return the messages of a gateway on one stream, as gRPC frames."""
    config = pb.ProtocolConfiguration(
        request_body_mode=MODES[mode], response_body_mode=pb.ProcessingMode.NONE
    )
    headers = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in HEADERS]
    first = pb.ProcessingRequest(
        request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers)), protocol_config=config
    )
    if mode == "BUFFERED":
        bodies = [pb.HttpBody(body=body, end_of_stream=True)]
    else:  # the end always comes as an empty chunk
        bodies = [pb.HttpBody(body=body), pb.HttpBody(end_of_stream=True)]
    messages = [first, *(pb.ProcessingRequest(request_body=each) for each in bodies)]
    frames = [message.SerializeToString() for message in messages]
    return b"".join(b"\0" + len(frame).to_bytes(4) + frame for frame in frames)


def chat(n_bytes: int) -> bytes:
    """Return a chat of about that size."""
    return chat_body([{"role": "user", "content": text(n_bytes, 1)[: n_bytes - 80]}])


@contextlib.contextmanager
def beside() -> Generator[dict[str, Running]]:
    """Run the servers beside which kvatlas is measured."""
    with contextlib.ExitStack() as stack:
        running: dict[str, Running] = {}
        for name in SERVERS:
            pipe = stack.enter_context(child(serve, name, SERVER_CPU))
            stack.callback(pipe.send, None)
            running[name] = Running(receive(pipe), partial(_work_of_child, pipe))
        yield running


async def _work_of_child(pipe: Connection) -> Work:
    pipe.send("work")
    work: Work = receive(pipe)
    return work


@contextlib.asynccontextmanager
async def kvatlas(bodies: Sequence[bytes]) -> AsyncGenerator[Running]:
    """Run `kvatlas serve` on one core, and engines that hold the chats."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        async with server.running(), aiohttp.ClientSession(server.rest) as session:
            pin(server.process.pid, SERVER_CPU)
            await server.hold(bodies, session)

            async def work() -> Work:
                n_requests = await metric(session, r"kvatlas_picks_total\{.*\}")
                return Work(int(n_requests), await metric(session, "process_cpu_seconds_total"))

            yield Running(int(server.address.rpartition(":")[2]), work)


def pin(pid: int, cpu: int) -> None:
    """Keep a process, with all the threads that it has, on one core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


async def rate(running: Running, command: Sequence[str], seconds: float) -> Rate:
    """Measure a server while a client runs; the server itself counts the requests."""
    before = await running.work()
    client = await asyncio.create_subprocess_exec(
        *("taskset", "--cpu-list", str(CLIENT_CPU), *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await client.communicate()
    done = (await running.work()).since(before)
    if client.returncode or not done.n_requests:
        raise SystemExit(f"{command[0]} failed, or no request was answered:\n{output.decode()}")
    return Rate(done.n_requests / seconds, done.cpu_s / done.n_requests * 1e6)


def h2load(port: int, data: Path, seconds: float) -> list[str]:
    """Return the command of a client that sends a whole conversation at once, and reads no gRPC."""
    url = f"http://{HOST}:{port}/{EXT_PROC_SERVICE}/Process"
    flags = ["-c", "1", "-m", str(CONCURRENT_REQUESTS), "-w", "24", "-W", "24", "-D", f"{seconds:g}"]
    return [
        "h2load",
        *flags,
        "-d",
        str(data),
        "-H",
        "content-type: application/grpc",
        "-H",
        "te: trailers",
        url,
    ]


async def alone(options: argparse.Namespace, others: Mapping[str, Running], ours: Running) -> Table:
    """Measure every server alone: one row per mode and size of body."""
    servers = {**others, "kvatlas": ours}
    rows: list[tuple[Cell, ...]] = []
    for n_bytes in options.body_bytes:
        for mode in MODES:
            with tempfile.NamedTemporaryFile() as file:
                file.write(conversation(mode, chat(n_bytes)))
                file.flush()
                best = await _best_of(options, servers, Path(file.name))
            cells = (cell for each in best.values() for cell in (round(each.per_second), each.cpu_us))
            rows.append((f"`{mode}`", n_bytes, *cells))
    columns = (column for name in servers for column in (name, "us"))
    headings = ("mode", "bytes of body", *columns)
    return Table(name="alone", title="Requests per second of one core", headings=headings, rows=tuple(rows))


async def _best_of(
    options: argparse.Namespace, servers: Mapping[str, Running], data: Path
) -> dict[str, Rate]:
    best: dict[str, Rate] = {}
    for _ in range(options.rounds):
        for name, running in servers.items():
            measured = await rate(running, h2load(running.port, data, options.seconds), options.seconds)
            best[name] = max(best.get(name, measured), measured, key=lambda each: each.per_second)
    return best


async def through_envoy(options: argparse.Namespace, ours: Running) -> Table:
    """Measure wrk through one Envoy without a picker, and with kvatlas; upstream is Envoy itself."""
    rows: list[tuple[Cell, ...]] = []
    for n_bytes in options.body_bytes:
        for mode in MODES:
            rates = [await _wrk(options, mode, n_bytes, ours, is_picked=picked) for picked in (False, True)]
            plain, picked = rates
            rows.append((f"`{mode}`", n_bytes, round(plain), round(picked), f"{picked / plain:.0%}"))
    headings = ("mode", "bytes of body", "without ext-proc", "with kvatlas", "")
    title = "Requests per second through Envoy"
    return Table(name="envoy", title=title, headings=headings, rows=tuple(rows))


async def _wrk(
    options: argparse.Namespace, mode: str, n_bytes: int, ours: Running, *, is_picked: bool
) -> float:
    """Return the requests per second."""
    upstream = HeldPort(HOST)
    config = gateway_config(
        "buffered" if mode == "BUFFERED" else "duplex",
        gateway=(HOST, 0),
        admin=(HOST, 0),
        picker=(HOST, ours.port),
        servers=[(HOST, upstream.number)],
    )
    config = _with_upstream(config if is_picked else without_picker(config), upstream.number)
    with tempfile.NamedTemporaryFile(suffix=".lua") as script:
        head = 'wrk.method = "POST"\nwrk.headers["content-type"] = "application/json"\nwrk.body = '
        script.write(f"{head}{json.dumps(chat(n_bytes).decode())}\n".encode())
        script.flush()
        async with EnvoyProcess(config, binary=find_envoy()) as envoy:
            url = f"{envoy.gateway_url}{PATH}"
            flags = ["-t", "1", "-c", "16", "-d", f"{options.seconds:g}s", "-s", script.name]
            client = await asyncio.create_subprocess_exec("wrk", *flags, url, stdout=asyncio.subprocess.PIPE)
            output = (await client.communicate())[0].decode()
    found = re.search(r"Requests/sec: +([\d.]+)", output)
    if found is None or "Non-2xx" in output:
        raise SystemExit(f"wrk failed:\n{output}")
    return float(found[1])


def _with_upstream(config: EnvoyConfig, port: int) -> EnvoyConfig:
    """Return the gateway with a model server in it that answers at once."""
    manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "envoy.extensions.filters.http.router.v3.Router"
    kind = "type.googleapis.com/"
    route = {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": "{}"}}}
    http = {
        "@type": kind + manager,
        "stat_prefix": "upstream",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": kind + router}}],
    }
    listener = {
        "name": "upstream",
        "address": {"socket_address": {"address": HOST, "port_value": port}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": http}]}
        ],
    }
    config["static_resources"]["listeners"].append(listener)
    return config


async def _measure(options: argparse.Namespace) -> list[Table]:
    bodies = [chat(n_bytes) for n_bytes in options.body_bytes]
    with beside() as others:
        async with kvatlas(bodies) as ours:
            tables = [await alone(options, others, ours)]
            if not options.without_envoy:
                tables.append(await through_envoy(options, ours))
    return tables


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement (4)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of which counts (3)")
    parser.add_argument("--body-bytes", type=int, nargs="+", default=[1000, 64_000], help="(1000 64000)")
    parser.add_argument("--without-envoy", action="store_true", help="the servers alone")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure all servers."""
    needed = {"h2load": "nghttp2-client", "taskset": "util-linux"}
    if not options.without_envoy:
        needed["wrk"] = "wrk"
    for tool, package in needed.items():
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is missing: apt-get install {package}")
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("the server and its client need a core each; this machine has one")
    return asyncio.run(_measure(options))


BENCHMARK = Benchmark(name="extproc", about=__doc__, add_options=add_options, run=run)
