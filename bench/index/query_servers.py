"""The servers whose `/query` is measured, as processes of their own, and the calls that a gateway makes."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from kvatlas.api.client import MSGPACK, query_body
from kvatlas.sim.kvatlas_process import KVAtlasProcess

from .fleet import BLOCK_SIZE, SEED, Blocks

MODEL = "bench"
JSON = "application/json"
_TIMEOUT_S = 60.0
_POLL_S = 0.1


class Form(Protocol):
    """A form of the body of `/query`."""

    def __call__(self, prompt: Blocks) -> tuple[str, bytes]:
        """Return content type and body."""
        ...


def json_body(prompt: Blocks) -> tuple[str, bytes]:
    """Return the body as JSON without white space, as a gateway in a compiled language writes it."""
    return JSON, msgspec.json.encode({"model_name": MODEL, "token_ids": [*prompt.tokens, 0]})


def msgpack_body(prompt: Blocks) -> tuple[str, bytes]:
    """Return the body as MessagePack with binary ids."""
    return MSGPACK, query_body(prompt.tokens + array("I", [0]), model_name=MODEL)


class Caller:
    """A connection that is kept, with nothing of a client's library in the time of a call.

    Args:
        port: of the server, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call(self, content_type: str, body: bytes) -> tuple[float, bytes]:
        """Send one query; returns the seconds until its whole response was there, and its body.

        Raises:
            SystemExit: the response is an error.
        """
        head = (
            f"POST /query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        message = head.encode() + body
        begin = time.perf_counter()
        self._socket.sendall(message)
        received = self._received()
        seconds = time.perf_counter() - begin
        if not received[0].startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"a query was answered with {received!r}")
        return seconds, received[1]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _received(self) -> tuple[bytes, bytes]:
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._piece()
        head, _, body = data.partition(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length:")
        n_bytes = int(length.split(b"\r\n")[0])
        while len(body) < n_bytes:
            body += self._piece()
        return head, body

    def _piece(self) -> bytes:
        piece = self._socket.recv(2**20)
        if not piece:
            raise SystemExit("a server closed the connection")
        return piece


class Listening(NamedTuple):
    """A running server: the port that it answers queries on, and its process id."""

    port: int
    pid: int


@asynccontextmanager
async def kvatlas_server(folder: Path, addresses: Sequence[str]) -> AsyncGenerator[Listening]:
    """Run kvatlas, which follows these publishers."""
    static = [
        {
            "name": str(number),
            "address": f"127.0.0.1:{number + 1}",
            "events": address,
            "replay": "",
            "metrics": "",
        }
        for number, address in enumerate(addresses)
    ]
    config = {
        "apiVersion": "kvatlas/v1",
        "kind": "KVAtlasConfig",
        "server": {"extProc": "127.0.0.1:0", "rest": "127.0.0.1:0", "health": "", "metrics": ""},
        "index": {"hashSeed": SEED},
        "model": {"names": [MODEL]},
        "endpoints": {"static": static},
    }
    file = folder / "kvatlas.yaml"
    file.write_bytes(msgspec.yaml.encode(config))
    process = KVAtlasProcess(file, log=folder / "kvatlas.log")
    async with process:
        yield Listening(process.addresses["rest"][1], process.pid)


@asynccontextmanager
async def dynamo_server(folder: Path, addresses: Sequence[str], *, threads: int) -> AsyncGenerator[Listening]:
    """Run Dynamo's standalone indexer, which follows these publishers."""
    port = _free_port()
    workers = ",".join(f"{number}={address}" for number, address in enumerate(addresses))
    with (folder / "dynamo.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "dynamo.indexer", "--block-size", str(BLOCK_SIZE), "--port", str(port)),
            *("--threads", str(threads), "--workers", workers, "--model-name", MODEL),
            stdout=log,
            stderr=log,
        )
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                while not _listens(port):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(_POLL_S)
            yield Listening(port, process.pid)
        finally:
            process.kill()
            await process.wait()


async def until_found(port: int, prompt: Blocks, n_endpoints: int, *, limit_s: float = _TIMEOUT_S) -> None:
    """Wait until a server finds a prompt on every endpoint, for `limit_s` at most."""
    caller = Caller(port)
    async with asyncio.timeout(limit_s):
        while len(found_by(caller.call(*json_body(prompt))[1])) < n_endpoints:  # noqa: ASYNC110 - as above
            await asyncio.sleep(_POLL_S)
    caller.close()


def found_by(answer: bytes) -> dict[str, tuple[int, int]]:
    """Return the tokens on GPU, and on GPU or CPU, of each endpoint that has any, by the answer of either server."""
    found = cast("dict[str, Any]", json.loads(answer))
    if "scores" in found:  # Dynamo's
        instances = {name: (each["gpu"], each["cpu"]) for name, each in found["instances"].items()}
    else:
        instances = {
            name: (each["GPU"], max(each["GPU"], each["CPU"]))
            for tenant in found.values()
            for name, each in tenant.items()
        }
    return {name: tokens for name, tokens in instances.items() if any(tokens)}


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
