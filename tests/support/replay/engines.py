"""Model servers that answer /metrics, each on the loopback address of its recording and all on one free port."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence

from support.replay.recordings import Json
from support.waiting import until

_GAUGES = {
    "waiting": "vllm:num_requests_waiting",
    "running": "vllm:num_requests_running",
    "kv": "vllm:kv_cache_usage_perc",
}
RECORDED_PORT = 8000
"""Port of servers in the recordings; a second one on an address has the next."""

_ATTEMPTS = 50
"""Ports that are tried; another process may have one of them on one of the addresses."""


class Engines:
    """The servers of one fleet, by name.

    Attributes:
        port: of all of them.
    """

    def __init__(self) -> None:
        self.port = 0
        self._pages: dict[str, _Page] = {}
        self._servers: list[asyncio.Server] = []

    async def start(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """Listen for the endpoints `addresses`, name -> IP address and port, on ports that are free on all of them.

        The recorded port 8000 is `port` here, and so on upwards.
        """
        self._pages = {name: _Page() for name in addresses}
        for _ in range(_ATTEMPTS):
            try:
                for name, (address, port) in addresses.items():
                    await self._listen(self._pages[name], address, port - RECORDED_PORT)
            except OSError:
                await self.stop()
            else:
                return
        raise AssertionError(f"no port is free on all of {', '.join(each for each, _ in addresses.values())}")

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for page in self._pages.values():
            for transport in tuple(page.transports):
                transport.abort()
        self._servers, self.port = [], 0

    def say(self, metrics: Mapping[str, Json | None]) -> None:
        """Change the pages of servers; None lets one fail."""
        for name, said in metrics.items():
            self._pages[name].change(metrics_page(said) if said is not None else None)

    async def until_read(self, names: Sequence[str] | None = None) -> None:
        """Wait until the servers were scraped since their last change."""
        for name in names if names is not None else self._pages:
            await until(self._pages[name].was_read, what=f"a scrape of {name}")

    async def _listen(self, page: _Page, address: str, above: int) -> None:
        loop = asyncio.get_running_loop()
        port = self.port + above if self.port else 0
        server = await loop.create_server(lambda: _Connection(page), address, port)
        self._servers.append(server)
        self.port = server.sockets[0].getsockname()[1] - above


class _Page:
    """The page of one server, and how often it was read since its last change."""

    def __init__(self) -> None:
        self.n_reads = 0
        self.transports: set[asyncio.Transport] = set()
        self._response = _response(None)

    def change(self, text: str | None) -> None:
        response = _response(text)
        if response != self._response:
            self._response, self.n_reads = response, 0

    def was_read(self) -> bool:
        return self.n_reads > 0

    def read(self) -> bytes:
        self.n_reads += 1
        return self._response


class _Connection(asyncio.Protocol):
    def __init__(self, page: _Page) -> None:
        self._page, self._rest = page, b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._page.transports.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        assert self._transport is not None
        self._page.transports.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        *requests, self._rest = (self._rest + data).split(b"\r\n\r\n")
        for _ in requests:
            self._transport.write(self._page.read())


@contextlib.asynccontextmanager
async def engines(addresses: Mapping[str, tuple[str, int]]) -> AsyncGenerator[Engines]:
    """Run servers for the endpoints `addresses`, name -> IP address and recorded port."""
    running = Engines()
    await running.start(addresses)
    try:
        yield running
    finally:
        await running.stop()


def metrics_page(said: Json) -> str:
    """Return a page with vLLM's names."""
    lines = [f"{series} {said[key]}" for key, series in _GAUGES.items() if key in said]
    loras: Json | list[Json] = said.get("lora", [])
    for lora in loras if isinstance(loras, list) else [loras]:
        labels = (
            f'max_lora="{lora["max"]}",running_lora_adapters="{lora["running"]}"'
            f',waiting_lora_adapters="{lora["waiting"]}"'
        )
        lines.append(f"vllm:lora_requests_info{{{labels}}} {lora.get('value', time.time())}")
    labels = ",".join(
        f'{label}="{said[key]}"'
        for key, label in (("block_size", "block_size"), ("num_blocks", "num_gpu_blocks"))
        if key in said
    )
    if labels:
        lines.append(f"vllm:cache_config_info{{{labels}}} 1")
    lines += [f"{series} {value}" for series, value in said.get("other", {}).items()]
    types = dict.fromkeys(f"# TYPE {line.partition('{')[0].partition(' ')[0]} gauge" for line in lines)
    return "".join(f"{line}\n" for line in (*types, *lines))


def _response(text: str | None) -> bytes:
    status, body = ("503 Service Unavailable", b"") if text is None else ("200 OK", text.encode())
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
