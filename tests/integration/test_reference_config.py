"""Configuration files of the reference picker in a running `kvatlas serve`, and the flags that come with them."""

from __future__ import annotations

import asyncio
import importlib.resources
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from support.gateway import gateway
from support.serve import serving
from support.waiting import PATIENCE_S, until

FOLDER = Path(str(importlib.resources.files("kvatlas.configs")))
METRICS = """vllm:num_requests_waiting 0
vllm:num_requests_running 0
vllm:kv_cache_usage_perc 0
vllm:cache_config_info{block_size="16",num_gpu_blocks="64"} 1
"""


@asynccontextmanager
async def metrics_server() -> AsyncGenerator[str]:
    """Serve the metrics of an idle engine; yield `host:port`."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=METRICS)

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.slow
async def test_published_tiered_file_learns_from_routing_though_the_engines_send_no_events(
    tmp_path: Path,
) -> None:
    async with metrics_server() as one, metrics_server() as other:
        # nothing listens on the derived event addresses
        static = [{"name": "one", "address": one}, {"name": "other", "address": other}]
        flags = ("--config-file", str(FOLDER / "tiered-v0.4.yaml"))
        async with gateway(tmp_path, *flags, endpoints={"static": static}) as gate:

            async def is_scraped() -> bool:
                rows = (await gate.served.get("/v1/endpoints"))["endpoints"]
                return all(row["load"] and row["publishers"][0]["blockSize"] == 16 for row in rows)

            await until(is_scraped, what="block sizes out of the engines' metrics")
            first = await gate.request(100)
            body = {"model": "m", "token_ids": list(range(100))}
            answer = await gate.served.post("/v1/score", body)
            tiers = (await gate.served.get("/v1/endpoints/one"))["tiers"]
            second = await gate.request(100)
            for request in (first, second):
                request.call.cancel()
    (warm,) = [each for each in answer["endpoints"] if each["address"] == first.address]
    (cold,) = [each for each in answer["endpoints"] if each["address"] != first.address]
    assert {term["name"]: term["product"] for term in warm["scores"]} == {
        "queue-scorer": 2.0,
        "kv-cache-utilization-scorer": 2.0,
        "gpu-prefix-cache-scorer": 1.0,
        "cpu-prefix-cache-scorer": 1.0,
    }
    assert (warm["total"], cold["total"]) == (6.0, 4.0)
    assert second.address == first.address
    assert [(tier["name"], tier["source"], tier["capacity"]) for tier in tiers[:2]] == [
        ("gpu", "routing", 64),
        ("cpu", "inferred", 41000),
    ]


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    file = tmp_path / "epp.yaml"
    file.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: queue-scorer}, {type: moon-scorer}, {type: openai-parser}]\n"
    )
    return file


@pytest.mark.slow
async def test_unknown_plugin_is_skipped_and_logged_when_the_flag_allows_it(
    unknown: Path, tmp_path: Path
) -> None:
    flags = ("--config-file", str(unknown), "--ignore-unknown-plugins")
    async with serving({}, tmp_path, *flags) as served:
        assert await served.status("/healthz") == 200
    log = "\n".join(served.log)
    assert "plugin moon-scorer is left out: kvatlas does not have its type" in log
    assert "plugin openai-parser has no effect: requestHandler.parsers does not name it" in log


@pytest.mark.slow
async def test_reference_flags_set_ports_on_every_interface(unknown: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kvatlas.app.cli.main", "serve", "--config-file", str(unknown)),
        *("--ignore-unknown-plugins", "--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0"),
        *("--rest", "127.0.0.1:0"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    hosts: dict[str, str] = {}
    async with asyncio.timeout(PATIENCE_S):
        while len(hosts) < 4:
            words = (await process.stderr.readline()).decode().split()
            assert words, "kvatlas serve ended"
            if "listens" in words:
                hosts[words[words.index("listens") - 1]] = words[-1].rpartition(":")[0]
    process.terminate()
    await process.communicate()
    assert process.returncode == 0
    everywhere = "0.0.0.0"
    assert hosts == {"extProc": everywhere, "health": everywhere, "rest": "127.0.0.1", "metrics": everywhere}
