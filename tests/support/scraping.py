"""HTTP servers with `/metrics`, and a scraper that records its results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

from aiohttp import web

from kvatlas.configs.engines import ENGINES
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.scrape.schedule import Intervals
from kvatlas.fleet.scrape.scraper import Scraper
from kvatlas.fleet.scrape.target import ScrapeSettings, ScrapeStatus
from kvatlas.scorers.core.model import Load
from kvatlas.sim.held_port import HeldPort

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

TIMEOUT_S = 10.0
INTERVAL_S = 0.005
IDLE_S = 0.04
SHORT_TIMEOUT_S = 0.1
MAX_BODY_BYTES = 100_000
LOAD = Load(waiting=1, running=2, kv_utilization=0.5, updated_at=100.0, gpu_tokens=160)


def metrics(waiting: int = 1, *, blocks: int = 10) -> bytes:
    return (
        f"vllm:num_requests_waiting {waiting}\nvllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.5\n"
        f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1\n'
    ).encode()


def answering(body: bytes, *, status: int = 200) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=status)

    return answer


class MetricsServer:
    """A server whose `/metrics` responds with `answer`, and counts requests."""

    def __init__(self) -> None:
        self.answer = answering(metrics())
        self.released = asyncio.Event()
        self.n_requests = 0
        self.clients: set[tuple[str, int]] = set()
        self.queries: list[str] = []
        self.in_flight = 0
        self.most_in_flight = 0
        self._held = HeldPort()
        self.port = self._held.number
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    async def start(self) -> None:
        """Listen, always on the same port."""
        app = web.Application()
        app.router.add_get("/metrics", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()

    async def stop(self) -> None:
        if self._runner is not None:
            self.released.set()
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def held(self, _: web.Request) -> web.StreamResponse:
        """Respond after `released` is set."""
        await self.released.wait()
        return web.Response(body=metrics())

    async def stalling(self, request: web.Request) -> web.StreamResponse:
        """Send half of the response at once, and the rest after `released` is set."""
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(metrics()[:20])
        await self.released.wait()
        return response

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.n_requests += 1
        self.queries.append(request.query_string)
        assert request.transport is not None
        self.clients.add(request.transport.get_extra_info("peername"))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self.answer(request)
        finally:
            self.in_flight -= 1


class Fleet:
    """A scraper with a stopped clock, and its results."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, idle_s: float = IDLE_S) -> None:
        self.now = 100.0
        self.loads = LoadTable(stale_after_s=2.0)
        self.facts: list[tuple[str, EngineFacts]] = []
        self.listener_fails = False
        self.scraper = Scraper(
            loads=self.loads,
            settings=ScrapeSettings(Intervals(INTERVAL_S, idle_s), timeout_s, MAX_BODY_BYTES),
            clock=lambda: self.now,
            rng=lambda: 0.5,
        )

    def note_facts(self, name: str, facts: EngineFacts) -> None:
        if self.listener_fails:
            raise ArithmeticError(f"{name} has {facts.num_gpu_blocks} blocks")
        self.facts.append((name, facts))

    def add(self, name: str, url: str) -> None:
        self.scraper.add(name, url, ENGINES, on_facts=self.note_facts)

    def load(self, name: str) -> Load | None:
        return self.loads.get(name, self.now)

    def status(self, name: str) -> ScrapeStatus:
        return self.scraper.status(name)
