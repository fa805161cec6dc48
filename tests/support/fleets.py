"""A fleet of real parts that talks to nobody."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

from kvatlas.api.fleet import Fleet
from kvatlas.api.metrics import Metrics
from kvatlas.api.scrape.loads import LoadTable
from kvatlas.api.scrape.scraper import Scraper
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
    """An empty fleet; its scraper is never started."""
    atlas = Atlas(tiers=TierTable(tiers), seed=0, core=index_core())
    loads = LoadTable(stale_after_s=2.0)
    subscriber = Subscriber()
    fleet = Fleet(
        atlas=atlas,
        subscriber=subscriber,
        scraper=Scraper(
            loads=loads,
            on_facts=lambda _name, _facts: None,
            interval_s=1.0,
            timeout_s=1.0,
            clock=lambda: 0.0,
            rng=lambda: 0.5,
        ),
        loads=loads,
        metrics=metrics or Metrics(),
        auto_capacity_tiers=(TierId(0),),
        trust_credit=dict.fromkeys(Trust, 1.0),
    )
    try:
        yield fleet
    finally:
        for endpoint in list(fleet):
            await fleet.remove(endpoint.name)
        await subscriber.close()
