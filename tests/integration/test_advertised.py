"""An SGLang server that describes its streams: events and load are followed without configuration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import zmq
import zmq.asyncio
from aiohttp import web
from prometheus_client import CollectorRegistry

from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.events.stream import Trust
from kvatlas.fleet.configured import ConfiguredFleet
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.roster import wanted_endpoints
from kvatlas.scorers.core.model import PREFILL_SPEED
from support.publishing import stored
from support.recording import Player, player, send
from support.waiting import until

METRICS = b"sglang:num_queue_reqs 9\nsglang:num_running_reqs 1\nsglang:token_usage 0.5\nsglang:page_size 16\n"
PROMPT = list(range(64))


@dataclass
class Server:
    """What a server serves over HTTP, and its load socket."""

    kv_events: dict[str, Any]
    load: zmq.asyncio.Socket
    port: int = 0
    n_scrapes: int = 0
    n_asked: int = 0
    answers: dict[str, Any] = field(default_factory=dict[str, Any])

    async def metrics(self, _: web.Request) -> web.StreamResponse:
        self.n_scrapes += 1
        return web.Response(body=METRICS)

    async def info(self, _: web.Request) -> web.StreamResponse:
        self.n_asked += 1
        return web.json_response({"kv_events": self.kv_events})

    async def publish_load(self, waiting: int, **_: object) -> None:
        sent = ["LoadStat", 4, waiting, 30, 100, 0, 0, 0, 0, 1_000_000, 20_000_000]
        await send(self.load, (b"load", bytes(8), msgspec.msgpack.encode(sent)))


@contextlib.asynccontextmanager
async def server(engine: Player) -> AsyncGenerator[Server]:
    context = zmq.asyncio.Context()
    load = context.socket(zmq.PUB)
    load_port = load.bind_to_random_port("tcp://127.0.0.1")
    ports = {
        name: int(address.rpartition(":")[2])
        for name, address in (("events", engine.events), ("replay", engine.replay))
    }
    one = Server(
        {
            "publisher": "zmq", "endpoint_host": "0.0.0.0", "endpoint_port_base": ports["events"], "topic": "", "block_size": 16,
            "dp_size": 1, "load_endpoint_port_base": load_port, "load_topic": "load",
            "replay_endpoint_port_base": ports["replay"],
        },
        load,
    )  # fmt: skip
    app = web.Application()
    app.router.add_get("/metrics", one.metrics)
    app.router.add_get("/server_info", one.info)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    one.port = runner.addresses[0][1]
    try:
        yield one
    finally:
        await runner.cleanup()
        context.destroy(linger=0)


@contextlib.asynccontextmanager
async def following(one: Server, **endpoint: Any) -> AsyncGenerator[ConfiguredFleet]:
    written = {
        "apiVersion": "kvatlas/v1",
        "kind": "KVAtlasConfig",
        "endpoints": {"static": [{"name": "sg", "address": f"127.0.0.1:{one.port}", **endpoint}]},
    }
    config = msgspec.convert(written, KVAtlasConfig)
    configured = ConfiguredFleet(config, FleetMetrics(CollectorRegistry()), siblings=None)
    for name, wanted in wanted_endpoints(config).items():
        configured.fleet.add(name, wanted.addresses, wanted.labels)
    try:
        yield configured
    finally:
        await configured.stop()


async def test_events_and_load_are_followed_as_the_server_says() -> None:
    async with player() as engine, server(engine) as one, following(one) as configured:
        fleet = configured.fleet
        await engine.publish(stored(0, PROMPT))
        (endpoint,) = list(fleet)
        # blocks come before the end of the replay, and a replay of nothing may end before the batch is published
        await until(
            lambda: held(configured) == 64 and endpoint.ranks[0].trust is Trust.LIVE,
            what="the blocks by replay",
        )
        assert endpoint.told_block_size == 16

        async def has_load() -> bool:
            await one.publish_load(2)
            load = fleet.load("sg", now=asyncio.get_running_loop().time())
            return load is not None and (load.waiting, load.running, load.kv_utilization) == (2, 4, 0.3)

        await until(has_load, what="the published load")
        assert endpoint.prefill_tokens_per_s == 50_000
        (shown,) = fleet.candidates(None, now=asyncio.get_running_loop().time())
        assert shown.attributes == {PREFILL_SPEED: 50_000}
        assert one.n_asked == 1


async def test_configured_addresses_win() -> None:
    async with player() as engine, server(engine) as one, following(one, events="") as configured:
        await until(lambda: one.n_asked == 1, what="the description asked for")
        await until(lambda: configured.follows_load("sg"), what="the load followed")
        (endpoint,) = list(configured.fleet)
        assert [rank.subscription for rank in endpoint.ranks] == [None]
        configured.fleet.forget("sg")
        assert not configured.follows_load("sg")


async def test_labels_hold_for_the_streams_that_the_server_names() -> None:
    labels = {"kvatlas.io/drops-last-block": "true"}
    async with player() as engine, server(engine) as one, following(one, labels=labels) as configured:
        await engine.publish(stored(0, PROMPT))
        await until(lambda: held(configured) == 64, what="the blocks by replay")
        layout = configured.fleet.atlas.ledger("sg", 0).layout()
        assert layout is not None
        assert layout.dropped == 1


def held(configured: ConfiguredFleet) -> int:
    return sum(tier.residencies for tier in configured.fleet.atlas.occupancy("sg")) * 16
