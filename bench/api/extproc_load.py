"""Load on one ext-proc server from outside: h2load as the gateway, and the CPU time of the whole process.

The server runs on one core and h2load (Debian: nghttp2-client) on another, with one connection, as Envoy has. h2load sends a
whole conversation at once and reads no gRPC; it starts the next stream when one has ended.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvatlas.api.extproc import ext_proc_pb2 as pb
from kvatlas.api.extproc.health import EXT_PROC_SERVICE

from ..common.conversations import chat_body, text
from ..common.processes import cpu_s
from ..common.server import PATH

HOST = "127.0.0.1"
SERVER_CPU, CLIENT_CPU = 0, 1
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
    """A server: the port of its ext-proc, and its process."""

    port: int
    pid: int


@dataclass(frozen=True)
class Figures:
    """Requests per second, CPU time of the whole server process per request, and latency."""

    per_second: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


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


def pin(pid: int, cpu: int) -> None:
    """Keep a process, with all the threads that it has, on one core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {cpu})


async def best_of(
    servers: Mapping[str, Running], frames: bytes, *, rounds: int, seconds: float, n_streams: int
) -> dict[str, Figures]:
    """Send the conversation to each server in turn; return the round of each with the most requests.

    Args:
        servers: by name.
        frames: the conversation.
        rounds: how often each server has its turn.
        seconds: of a turn.
        n_streams: how many requests are open at any time.
    """
    best: dict[str, Figures] = {}
    for _ in range(rounds):
        for name, running in servers.items():
            found = await _load(running, frames, n_streams, "-D", f"{seconds * 1000:.0f}ms")
            best[name] = max(best.get(name, found), found, key=lambda each: each.per_second)
    return best


async def send_all(running: Running, frames: bytes, *, n_requests: int, n_streams: int) -> Figures:
    """Send the conversation so many times."""
    return await _load(running, frames, n_streams, "-n", str(n_requests))


async def _load(running: Running, frames: bytes, n_streams: int, *length: str) -> Figures:
    """Run h2load.

    Raises:
        SystemExit: h2load failed, or a request was not answered with HTTP status 200.
    """
    with tempfile.NamedTemporaryFile() as data, tempfile.NamedTemporaryFile("r") as log:
        data.write(frames)
        data.flush()
        command = [
            *("taskset", "--cpu-list", str(CLIENT_CPU), "h2load", "-c", "1", "-m", str(n_streams)),
            *("-w", "24", "-W", "24", *length, "-d", data.name, "--log-file", log.name),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            f"http://{HOST}:{running.port}/{EXT_PROC_SERVICE}/Process",
        ]
        before = cpu_s(running.pid)
        client = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output = (await client.communicate())[0].decode()
        used_s = cpu_s(running.pid) - before
        rows = [line.split("\t") for line in log.read().splitlines()]
    failed = re.search(r" (\d+) failed, ", output)
    if (
        client.returncode
        or len(rows) < 2
        or failed is None
        or int(failed[1])
        or {row[1] for row in rows} != {"200"}
    ):
        raise SystemExit(f"h2load failed, or a request did:\n{output}")
    starts_us, times_us = [int(row[0]) for row in rows], [int(row[2]) for row in rows]
    passed_us = max(map(int.__add__, starts_us, times_us)) - min(starts_us)
    quantiles = statistics.quantiles(times_us, n=100)
    return Figures(
        per_second=len(rows) / passed_us * 1e6,
        cpu_us=used_s / len(rows) * 1e6,
        p50_ms=quantiles[49] / 1000,
        p99_ms=quantiles[98] / 1000,
    )
