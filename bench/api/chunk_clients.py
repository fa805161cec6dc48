"""Clients that send chunks of responses to a server: `chunkload`, a gateway in Go, and a faster one of our own.

`chunkload` comes with the reference picker (see reference.py). The programs of `native/` are compiled when they are wanted.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvatlas.api.extproc import ext_proc_pb2 as pb

from ..common.conversations import MODEL
from .extproc_load import CLIENT_CPU, HEADERS, HOST, SERVER_CPU, Running, chat

N_STREAMS, N_CONNECTIONS = 512, 2
"""Open responses at once, and connections: those of a gateway with two threads."""

BOTH_STREAMED = pb.ProtocolConfiguration(
    request_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED,
    response_body_mode=pb.ProcessingMode.FULL_DUPLEX_STREAMED,
)
CHUNK = b'data: {"id":"chatcmpl-4f1c2b7d9a3e4c5f8b6a7d8e9f0a1b2c","object":"chat.completion.chunk","created":1764000000,"model":"m","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
LAST = b'data: {"id":"x","object":"chat.completion.chunk","model":"m","choices":[],"usage":{"prompt_tokens":200,"total_tokens":600,"completion_tokens":400}}\n\ndata: [DONE]\n\n'
BODY = f'{{"model":"{MODEL}","stream":true,"messages":[{{"role":"user","content":"hello hello"}}]}}'.encode()

NO_COLLECTION = {"GOGC": "off", "GOMEMLIMIT": "3GiB"}
"""Environment of `chunkload`: it collects no garbage meanwhile, since every chunk of that time would wait for it."""

_PIECE_BYTES = 1 << 16
_NATIVE = Path(__file__).parent / "native"


class Said(msgspec.Struct):
    """Output of `chunkload`: chunks, chunks per second, added latency in milliseconds, streams that came up short."""

    n: int
    rate: float
    p50: float
    p99: float
    short: int


class Times(msgspec.Struct):
    """Replies, how many did not come, and latency in milliseconds."""

    n: int
    missing: int
    p50: float
    p99: float
    max: float


class Streamed(msgspec.Struct):
    """Output of our gateway: chunks per second, and latency of chunks and of decisions for short and for long prompts."""

    rate: float
    chunks: Times
    short: Times
    long: Times


@dataclass(frozen=True)
class Programs:
    """Compiled programs: a server that only answers chunks, and our gateway."""

    echo: Path
    gateway: Path


def shape(n_streams: int, per_second: float, seconds: float, *, tls: bool) -> tuple[str, ...]:
    """Return the options of `chunkload` for so many chunks per second of all streams together."""
    rate = per_second / n_streams
    numbers = {
        "streams": n_streams,
        "conns": N_CONNECTIONS,
        "rate": rate,
        "chunks": max(2, int(rate * seconds)),
    }
    return (*(f"-{name}={value}" for name, value in numbers.items()), *(["-tls"] if tls else []))


async def load(running: Running, binary: Path, options: Sequence[str]) -> Said:
    """Run `chunkload` once.

    Raises:
        SystemExit: a stream failed.
    """
    client = await asyncio.create_subprocess_exec(
        *("taskset", "--cpu-list", str(CLIENT_CPU), str(binary), "-addr", f"{HOST}:{running.port}", *options),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | NO_COLLECTION,
    )
    lines = (await client.communicate())[0].decode().splitlines()
    said = msgspec.json.decode(lines[-1], type=Said)
    if said.short or len(lines) > 1:
        raise SystemExit(f"chunkload: {said.short} streams came up short: {lines[:3]}")
    return said


def compiled(folder: Path) -> Programs:
    """Compile our programs into a folder.

    Raises:
        SystemExit: the compiler is missing or failed.
    """
    for name in ("chunk_echo", "chunk_gateway"):
        command = ["g++", "-std=c++20", "-O2", "-o", str(folder / name), str(_NATIVE / f"{name}.cpp")]
        try:
            subprocess.run(command, check=True)  # noqa: S603 - our own program
        except (FileNotFoundError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"{name}.cpp cannot be compiled: {error}") from error
    return Programs(folder / "chunk_echo", folder / "chunk_gateway")


@asynccontextmanager
async def echo(programs: Programs) -> AsyncGenerator[Running]:
    """Run the server that only answers chunks on one core."""
    server = await asyncio.create_subprocess_exec(
        *("taskset", "--cpu-list", str(SERVER_CPU), str(programs.echo)), stdout=asyncio.subprocess.PIPE
    )
    try:
        port = await server.stdout.readline() if server.stdout is not None else b""
        yield Running(int(port), server.pid)
    finally:
        server.kill()
        await server.wait()


async def stream(
    running: Running,
    programs: Programs,
    per_second: float,
    seconds: float,
    *,
    decisions: tuple[float, float] = (0, 0),
    n_long_bytes: int = 0,
) -> Streamed:
    """Run our gateway once.

    Args:
        running: the server.
        programs: ours.
        per_second: chunks per second of all streams.
        seconds: how long.
        decisions: requests per second beside the chunks, with short and with long prompts.
        n_long_bytes: size of a long prompt's body.

    Raises:
        SystemExit: the connection failed.
    """
    n_chunks = max(2, int(per_second * seconds / N_STREAMS))
    numbers = (running.port, N_CONNECTIONS, N_STREAMS, n_chunks, per_second, *decisions)
    gateway = await asyncio.create_subprocess_exec(
        *("taskset", "--cpu-list", str(CLIENT_CPU), str(programs.gateway), *map(str, numbers)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    lines = [f"{name} {content.hex()}\n" for name, content in _messages(n_long_bytes).items()]
    printed = (await gateway.communicate("".join(lines).encode()))[0]
    if gateway.returncode != 0:
        raise SystemExit("chunk_gateway failed; its own message is above")
    return msgspec.json.decode(printed, type=Streamed)


def _messages(n_long_bytes: int) -> Mapping[str, bytes]:
    respond = pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=[
        pb.HeaderValue(key=":status", raw_value=b"200"), pb.HeaderValue(key="content-type", raw_value=b"text/event-stream"),
    ])))  # fmt: skip
    return {
        "short": _request(BODY),
        "long": _request(chat(n_long_bytes) if n_long_bytes else BODY),
        "headers": _framed(respond),
        "chunk": _framed(pb.ProcessingRequest(response_body=pb.HttpBody(body=CHUNK))),
        "last": _framed(pb.ProcessingRequest(response_body=pb.HttpBody(body=LAST, end_of_stream=True))),
    }


def _request(body: bytes) -> bytes:
    headers = [pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in HEADERS]
    pieces = [body[at : at + _PIECE_BYTES] for at in range(0, len(body), _PIECE_BYTES)]
    return b"".join(
        map(_framed, [
            pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=headers)), protocol_config=BOTH_STREAMED),
            *(pb.ProcessingRequest(request_body=pb.HttpBody(body=piece)) for piece in pieces),
            pb.ProcessingRequest(request_body=pb.HttpBody(end_of_stream=True)),
        ])
    )  # fmt: skip


def _framed(message: pb.ProcessingRequest) -> bytes:
    content = message.SerializeToString()
    return b"\0" + len(content).to_bytes(4) + content
