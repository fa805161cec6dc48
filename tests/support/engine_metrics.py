"""An engine's /metrics over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def metrics_of(*texts: str) -> AsyncGenerator[tuple[str, list[str]]]:
    """Serve the first of `texts`; yield the URL and the list, which tests may change."""
    current = list(texts)

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=current[0])

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics", current
    finally:
        await runner.cleanup()
