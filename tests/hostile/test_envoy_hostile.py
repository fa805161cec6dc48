"""A real Envoy between hostile clients and a hostile model server: honest requests keep their prefix."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest

from kvatlas.sim.envoy import EnvoyProcess, find_envoy, gateway_config
from support.envoy_gateway import ANY_PORT, Mode, pickers_in_use, start_model_server
from support.serve import Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
N_TOKENS = 100
LIMITS = {
    "maxBodyBytes": 2 * MIB,
    "maxHeldBytes": 8 * MIB,
    "maxPendingRequests": 256,
    "requestTimeout": "1500ms",
}
Writer = asyncio.StreamWriter
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = chunk(b"")


async def endless(writer: Writer, start: bytes, piece: bytes) -> None:
    """Send as much as anybody takes, up to 16 MiB."""
    writer.write(start)
    for _ in range(16 * MIB // len(piece)):
        writer.write(chunk(piece))
        await writer.drain()


async def answer_endless_line(writer: Writer) -> None:
    await endless(writer, SSE + chunk(b"data: "), b"x" * 16_384)


async def answer_endless_json(writer: Writer) -> None:
    await endless(writer, JSON + chunk(b'{"usage":'), b"[" * 16_384)


async def answer_tiny_events(writer: Writer) -> None:
    writer.write(
        SSE + b"".join(chunk(b'data: {"usage":{"prompt_tokens":"1e999"}}\n\n') for _ in range(2000)) + END
    )


async def answer_malformed_json(writer: Writer) -> None:
    writer.write(JSON + chunk(b'{"usage":{"prompt_tokens":\xff\x00' + b"[" * 200_000) + END)


async def answer_huge_chunk(writer: Writer) -> None:
    writer.write(JSON + chunk(b'{"model":"h","x":"' + b"x" * 4 * MIB + b'"}') + END)


async def answer_slowly(writer: Writer) -> None:
    writer.write(SSE + chunk(b"data: 1\n\n"))
    await writer.drain()
    await asyncio.Event().wait()  # until the server is closed


async def answer_reset(writer: Writer) -> None:
    writer.write(SSE + chunk(b"data: 1\n\n"))
    await writer.drain()
    writer.transport.abort()


async def answer_garbage(writer: Writer) -> None:
    writer.write(b"\x00\x01\x02" * 1000)


ANSWERS: dict[str, Callable[[Writer], Awaitable[None]]] = {
    f"/{answer.__name__}": answer
    for answer in (
        answer_endless_line,
        answer_endless_json,
        answer_tiny_events,
        answer_malformed_json,
        answer_huge_chunk,
        answer_slowly,
        answer_reset,
        answer_garbage,
    )
}


@asynccontextmanager
async def hostile_server() -> AsyncGenerator[str]:
    """Run a model server that answers each path in a bad way of its own; yields its address."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode().removesuffix("/v1/completions")
            await ANSWERS.get(path, answer_reset)(writer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, *ANY_PORT)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Rig:
    """Envoy in front of `kvatlas serve`, a good model server for model m, and a hostile one for model h."""

    envoy: EnvoyProcess
    client: aiohttp.ClientSession
    picker: Served
    n_honest: int = 0
    connections: list[tuple[asyncio.StreamReader, Writer]] = field(
        default_factory=list[tuple[asyncio.StreamReader, Writer]]
    )

    async def ask(self) -> int:
        """Send an honest request; returns its status."""
        self.n_honest += 1
        body = {"model": "m", "prompt": list(range(N_TOKENS))}
        headers = {"x-request-id": f"honest-{self.n_honest}"}
        async with self.client.post("/v1/completions", json=body, headers=headers) as answer:
            await answer.read()
            return answer.status

    async def send(self, *parts: bytes) -> Writer:
        """Send bytes over a new connection, and read nothing; returns it."""
        url = urlsplit(self.envoy.gateway_url)
        reader, writer = await asyncio.open_connection(url.hostname, url.port)
        self.connections.append((reader, writer))  # a reader that is collected closes the connection
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        return writer

    async def hostile_answer(self, path: str) -> None:
        """Send a request for one of the bad answers, and read as much of it as comes."""
        body = {"model": "h", "prompt": [1, 2, 3]}
        with suppress(aiohttp.ClientError, TimeoutError):
            timeout = aiohttp.ClientTimeout(total=1)
            async with self.client.post(f"{path}/v1/completions", json=body, timeout=timeout) as answer:
                async for _ in answer.content.iter_any():
                    pass

    async def values(self, *names: str) -> list[float]:
        """Return metrics of the picker, each the sum over its labels."""
        lines = [line.rpartition(" ") for line in (await self.picker.metrics()).splitlines()]
        return [
            sum(float(value) for key, _, value in lines if key.partition("{")[0] == f"kvatlas_{name}")
            for name in names
        ]


STALLED = (*[1_200_000] * 8, 600_000, 300_000, 150_000, 75_000, *[30_000] * 3, *[5_000] * 5, *[200] * 40)
"""Lengths of uploads that together fill all room to the last byte, unless some is kept for small bodies."""


def head(*headers: bytes, length: int | None = None) -> bytes:
    """Return the head of a completion request; chunked unless its length is given."""
    size = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    lines = (b"POST /v1/completions HTTP/1.1", b"host: h", b"content-type: application/json", size, *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n"


async def attack(at: Rig) -> None:
    """Send what hostile clients send, and leave it open."""
    whole = b'{"model":"m","prompt":"p"}'
    piece = chunk(b"x" * 60_000)
    for length in STALLED:
        await at.send(head(), chunk(b'{"model":"m","prompt":"' + b"x" * length))  # an upload that stalls
    for _ in range(8):
        await at.send(head(length=50_000_000))  # headers alone
        await at.send(head(b"x-a: " + b"y" * 50_000, length=50_000_000))  # large headers alone
        await at.send(head(b"x-a: " + b"y" * 90_000))  # headers larger than Envoy takes
        await at.send(head(length=len(whole)), b'{"model":' + whole[:-9])  # malformed
        await at.send(head(*[b"x-llm-d-model-name-rewrite: " + b"t" * 5000], length=len(whole)), whole)
        await at.send(head(length=MIB), json.dumps({"model": "n" * 500_000}).encode())
        (await at.send(head(), piece)).transport.abort()
        (await at.send(head(length=len(whole)), whole)).transport.abort()
    uploads = [at.send(head(), *[piece] * 60) for _ in range(6)]  # longer than any limit
    answers = [at.hostile_answer(path) for path in ANSWERS for _ in range(2)]
    async with asyncio.timeout(20):
        await asyncio.gather(
            *answers, *(asyncio.wait_for(each, 3) for each in uploads), return_exceptions=True
        )


@asynccontextmanager
async def rig(mode: Mode, folder: Path) -> AsyncGenerator[Rig]:
    async with AsyncExitStack() as stack:
        good = await start_model_server(stack)
        bad = await stack.enter_async_context(hostile_server())
        servers = {"m": good.address, "h": bad}
        config: dict[str, Any] = {
            "extProc": LIMITS,
            "models": [{"names": [name], "endpointLabels": {"model": name}} for name in servers],
            "endpoints": {
                "static": [
                    {"name": name, "address": address, "events": "", "metrics": "", "labels": {"model": name}}
                    for name, address in servers.items()
                ]
            },
        }
        picker = await stack.enter_async_context(serving(config, folder))
        host, _, port = bad.rpartition(":")
        envoy_config = gateway_config(
            mode,
            gateway=ANY_PORT,
            admin=ANY_PORT,
            picker=("127.0.0.1", picker.ports["extProc"]),
            servers=[good.host_port, (host, int(port))],
        )
        envoy = await stack.enter_async_context(EnvoyProcess(envoy_config, binary=find_envoy()))
        client = await stack.enter_async_context(
            aiohttp.ClientSession(envoy.gateway_url, connector=aiohttp.TCPConnector(limit=0))
        )
        made = Rig(envoy, client, picker)
        await pickers_in_use(envoy, client, 1)
        try:
            yield made
        finally:
            for _, writer in made.connections:
                writer.close()


async def is_zero(at: Rig, *names: str) -> bool:
    return not any(await at.values(*names))


@pytest.mark.parametrize("mode", ["duplex", "buffered"])
async def test_honest_requests_keep_their_prefix_amid_hostile_clients_and_servers(
    mode: Mode, tmp_path: Path
) -> None:
    async with rig(mode, tmp_path) as at:
        attacking = asyncio.create_task(attack(at))
        statuses: list[int] = []
        try:
            while not attacking.done() or len(statuses) < 50:
                statuses.append(await at.ask())
        finally:
            attacking.cancel()  # of no effect on one that has ended
            await asyncio.wait([attacking])
        attacking.result()

        assert set(statuses) == {200}
        kept = (await at.picker.get("/v1/decisions?limit=1000"))["decisions"]
        honest = [each for each in kept if each["requestId"].startswith("honest-")]
        assert len(honest) >= 50
        assert {(each["tokens"], each["picked"][0]) for each in honest} == {(N_TOKENS, "m")}
        # Uploads that stall give their room back by themselves, and all else once their clients leave.
        await until(lambda: is_zero(at, "pending_requests", "held_bytes"), what="nothing held")
        for _, writer in at.connections:
            writer.close()
        await until(lambda: is_zero(at, "open_streams", "in_flight_requests"), what="nothing in flight")
        assert await at.ask() == 200
        assert await at.picker.status("/readyz") == 200
