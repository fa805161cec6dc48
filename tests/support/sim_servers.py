"""One simulated server in this process, and a session to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from kvatlas.sim.demo_model import MODEL_NAME
from kvatlas.sim.model_text import TokenizerText
from kvatlas.sim.server import ServerConfig, SimServer


@asynccontextmanager
async def sim_server(
    text: TokenizerText, **config: Any
) -> AsyncGenerator[tuple[SimServer, aiohttp.ClientSession]]:
    """Run a server as fast as this machine can; `config` overrides the defaults."""
    defaults: dict[str, Any] = {"name": "sim-0", "model": MODEL_NAME, "time_scale": 0.0}
    async with (
        SimServer(ServerConfig(**defaults | config), text) as server,
        aiohttp.ClientSession(f"http://{server.address}") as session,
    ):
        yield server, session
