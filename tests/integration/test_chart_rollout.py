"""A rolling restart of the chart's pods with `router.proxy`: no request fails, kept connections and long responses included."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from support.api_server import ApiServerDouble
from support.chart_pod import ChartPod
from support.chart_values import SHAPES
from support.cluster import PODS
from support.manifests import helm

pytestmark = pytest.mark.slow

N_CLIENTS = 12
N_STEPS = 1, 3, 10, 30
STEP_S = 0.05
"""Time between two chunks: the longest response lasts longer than `server.drainNotice`."""
VALUES = SHAPES["standalone"] | {"config": {"server": {"drainNotice": "1s"}}}


async def stream(request: web.Request) -> web.StreamResponse:
    n_steps = json.loads(await request.read())["steps"]
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    for _ in range(n_steps):
        await asyncio.sleep(STEP_S)
        await answer.write(b"data: 1\n\n")
    return answer


async def models(_: web.Request) -> web.Response:
    return web.json_response({"data": []})


class Service:
    """Clients that follow the pods that are ready, and keep their connections as long as these are open."""

    def __init__(self) -> None:
        self.ready: list[ChartPod] = []
        self.seen: Counter[str] = Counter()
        self.is_over = asyncio.Event()

    async def ask(self, rng: random.Random) -> None:
        """Send one request after the other, on a new connection to a pod whenever the last one was closed."""
        while not self.is_over.is_set():
            url = rng.choice(self.ready).url
            async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=1)) as session:
                try:
                    while not self.is_over.is_set() and await self._request(session, rng):
                        pass
                except aiohttp.ClientError as error:
                    self.seen[type(error).__name__] += 1

    async def _request(self, session: aiohttp.ClientSession, rng: random.Random) -> bool:
        """Return whether the connection is kept after a request."""
        body = {"model": "m", "prompt": "p", "steps": rng.choice(N_STEPS)}
        async with session.post("/v1/completions", json=body) as answer:
            await answer.read()
            self.seen[str(answer.status)] += 1
            return answer.headers.get("connection") != "close"


@asynccontextmanager
async def cluster() -> AsyncGenerator[tuple[ApiServerDouble, int]]:
    """Run an API server with one model server, and yield the latter's port too."""
    app = web.Application()
    app.router.add_post("/v1/completions", stream)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    double = ApiServerDouble()
    await double.start()
    try:
        await web.TCPSite(runner, "127.0.0.2", 0).start()
        labels = {"llm-d.ai/guide": "x"}
        meta = {"labels": labels, "annotations": {"kvatlas.io/events-port": ""}}
        conditions = [{"type": "Ready", "status": "True"}]
        double.put(
            PODS, "server", {"metadata": meta, "status": {"podIP": "127.0.0.2", "conditions": conditions}}
        )
        yield double, runner.addresses[0][1]
    finally:
        await double.stop()
        await runner.cleanup()


async def test_pods_with_their_envoy_are_replaced_without_a_failed_request(tmp_path: Path) -> None:
    service, manifests = Service(), helm(VALUES)
    async with cluster() as (double, port), AsyncExitStack() as stack:

        async def begin(name: str) -> ChartPod:
            pod = ChartPod(manifests, tmp_path / name)
            stack.push_async_callback(pod.end)
            await pod.start(double, port)
            service.ready.append(pod)
            return pod

        old = [await begin("old-1"), await begin("old-2")]
        clients = [asyncio.create_task(service.ask(random.Random(n))) for n in range(N_CLIENTS)]
        for n, pod in enumerate(old):
            await begin(f"new-{n}")
            service.ready.remove(pod)
            await pod.end()
        service.is_over.set()
        await asyncio.gather(*clients)

    assert service.seen.keys() == {"200"}, service.seen


async def test_requests_get_503_while_the_pod_has_no_picker(tmp_path: Path) -> None:
    async with cluster() as (double, port), AsyncExitStack() as stack:
        pod = ChartPod(helm(VALUES), tmp_path / "pod")
        stack.push_async_callback(pod.end)
        await pod.start(double, port)
        await pod.kill_picker()
        server = {"x-gateway-destination-endpoint": f"127.0.0.2:{port}"}
        async with (
            aiohttp.ClientSession(pod.url, headers=server) as session,
            session.post("/v1/completions", json={"steps": 1}) as answer,
        ):
            assert answer.status == 503
