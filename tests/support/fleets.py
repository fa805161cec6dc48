"""A fleet of real parts that talks to nobody."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from kvatlas.api.fleet import Fleet
from kvatlas.api.metrics import Metrics
from kvatlas.api.scrape.loads import LoadTable
from kvatlas.api.scrape.schedule import Rhythm
from kvatlas.api.scrape.scraper import Scraper
from kvatlas.api.scrape.target import ScrapeSettings
from kvatlas.configs.engines import EngineCatalog
from kvatlas.configs.schema import MetricsScrapeConfig
from kvatlas.events.stream import Trust
from kvatlas.events.subscriber import Subscriber
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.tiers import TierId, TierSpec, TierTable

TIERS = (TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",)), TierSpec("disk", ("STORAGE",), shared=True))


@contextlib.asynccontextmanager
async def make_fleet(
    *, tiers: tuple[TierSpec, ...] = TIERS, metrics: Metrics | None = None
) -> AsyncGenerator[Fleet]:
    """An empty fleet."""
    atlas = Atlas(tiers=TierTable(tiers), seed=0, core=index_core())
    loads = LoadTable(stale_after_s=2.0)
    subscriber = Subscriber()
    scraper = Scraper(
        loads=loads,
        on_facts=lambda _name, _facts: None,
        settings=ScrapeSettings(Rhythm(1, 1), timeout_s=1),
        clock=lambda: 0.0,
        rng=lambda: 0.5,
    )
    fleet = Fleet(
        atlas=atlas,
        subscriber=subscriber,
        scraper=scraper,
        loads=loads,
        metrics=metrics or Metrics(),
        auto_capacity_tiers=(TierId(0),),
        trust_credit=dict.fromkeys(Trust, 1.0),
        engines=EngineCatalog(MetricsScrapeConfig()),
    )
    try:
        yield fleet
    finally:
        for endpoint in list(fleet):
            await fleet.remove(endpoint.name)
        await scraper.stop()
        await subscriber.close()
