"""Fleets made of real parts, and configurations for them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.configs.units import Duration
from kvatlas.events.options import SubscriberOptions
from kvatlas.events.subscriber import Subscriber
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.in_flight import Siblings
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.scraper import Scraper
from kvatlas.fleet.scrape.target import ScrapeSettings
from kvatlas.fleet.settings import fleet_settings, scrape_settings, tier_specs
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierSpec, TierTable

TIERS = (TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",)), TierSpec("disk", ("STORAGE",), shared=True))
NOWHERE = "tcp://127.0.0.1:1"


def make_config(**sections: Any) -> KVAtlasConfig:
    """Return a configuration with some sections as plain data."""

    def decode(_: type, value: object) -> Duration:
        return Duration.parse(value)

    data = {"kind": "KVAtlasConfig", "apiVersion": "kvatlas/v1"} | sections
    return msgspec.convert(data, KVAtlasConfig, dec_hook=decode)


def make_endpoint(name: str, number: int = 1, **more: Any) -> dict[str, Any]:
    """Return the configuration of an endpoint that does not respond."""
    nowhere = {"address": f"127.0.0.1:{number}", "events": NOWHERE, "replay": "", "metrics": ""}
    return {"name": name} | nowhere | more


def with_endpoints(*endpoints: Mapping[str, Any], **sections: Any) -> KVAtlasConfig:
    """Return a configuration with these endpoints."""
    return make_config(endpoints={"static": list(endpoints)}, **sections)


@contextlib.asynccontextmanager
async def make_fleet(
    config: KVAtlasConfig | None = None,
    *,
    tiers: Sequence[TierSpec] = TIERS,
    metrics: FleetMetrics | None = None,
    max_sockets: int = 1000,
    loads: LoadTable | None = None,
    siblings: Siblings | None = None,
    scraping: ScrapeSettings | None = None,
) -> AsyncGenerator[Fleet]:
    """Provide an empty fleet with the settings and tiers of `config`, or with `tiers` and default settings."""
    specs = tier_specs(config.tiers) if config is not None else tiers
    config = config or make_config()
    loads = loads or LoadTable(stale_after_s=config.metrics_scrape.stale_after)
    subscriber = Subscriber(SubscriberOptions(max_sockets=max_sockets))

    scraper = Scraper(
        loads=loads,
        settings=scraping or scrape_settings(config.metrics_scrape),
        clock=time.monotonic,
        rng=lambda: 0.5,
    )
    fleet = Fleet(
        atlas=Atlas(tiers=TierTable(specs), seed=0, core=index_core()),
        subscriber=subscriber,
        scraper=scraper,
        loads=loads,
        metrics=metrics or FleetMetrics(CollectorRegistry()),
        settings=fleet_settings(config),
        siblings=siblings,
    )
    try:
        yield fleet
    finally:
        for endpoint in list(fleet):
            await fleet.remove(endpoint.name)
        await scraper.stop()
        await subscriber.close()
