"""Servers of stages over real HTTP: engines that say something of themselves, and a sidecar before an engine."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web


def vllm_metrics(*lines: str, model: str = "m", **cache: str) -> str:
    """Return a page of vLLM whose cache has these labels, with further lines."""
    labels = {"block_size": "16", "cache_dtype": "auto", "prefix_caching_hash_algo": "sha256", **cache}
    shown = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return "\n".join(
        [
            f'vllm:num_requests_running{{engine="0",model_name="{model}"}} 0.0',
            f'vllm:num_requests_waiting{{engine="0",model_name="{model}"}} 0.0',
            f'vllm:kv_cache_usage_perc{{engine="0",model_name="{model}"}} 0.0',
            f"vllm:cache_config_info{{{shown}}} 1.0",
            *lines,
            "",
        ]
    )


NIXL = 'vllm:nixl_num_failed_transfers_total{engine="0"} 0.0'
OFFLOADING = 'vllm:kv_offload_total_bytes_total{engine="0"} 0.0'


def nixl_config(compatibility_hash: str, role: str = "kv_both") -> str:
    """Return the line of vLLM in which its NIXL connector describes itself."""
    return (
        f'vllm:nixl_config_info{{engine="0",kv_connector="NixlConnector",kv_role="{role}",'
        f'compatibility_hash="{compatibility_hash}"}} 1.0'
    )


def sglang_metrics(model: str = "m") -> str:
    """Return a page of SGLang."""
    return "\n".join(
        [
            f'sglang:num_running_reqs{{model_name="{model}"}} 0.0',
            f'sglang:num_queue_reqs{{model_name="{model}"}} 0.0',
            f'sglang:token_usage{{model_name="{model}"}} 0.0',
            f'sglang:page_size{{model_name="{model}"}} 16.0',
            "",
        ]
    )


@asynccontextmanager
async def engine(metrics: str, info: Mapping[str, object] | None = None) -> AsyncGenerator[str]:
    """Run an engine; yield its `host:port`."""

    async def show(_request: web.Request) -> web.Response:
        return web.Response(text=metrics)

    async def describe(_request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(info))

    app = web.Application()
    app.router.add_get("/metrics", show)
    if info is not None:
        app.router.add_get("/server_info", describe)
    async with _running(app) as address:
        yield address


@asynccontextmanager
async def sidecar(behind: str) -> AsyncGenerator[str]:
    """Run what answers GET as the reference's sidecar does, before the engine at `behind`; yield its `host:port`."""
    async with aiohttp.ClientSession() as session:

        async def answer(request: web.Request) -> web.Response:
            if "//" in request.path:
                raise web.HTTPTemporaryRedirect(request.path.replace("//", "/"))
            if request.path == "/health":
                return web.Response()
            async with session.get(f"http://{behind}{request.path}") as response:
                return web.Response(body=await response.read(), status=response.status)

        app = web.Application()
        app.router.add_get("/{path:.*}", answer)
        async with _running(app) as address:
            yield address


@asynccontextmanager
async def _running(app: web.Application) -> AsyncGenerator[str]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
