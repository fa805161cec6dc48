"""The fleet of a configuration: built, reconfigured and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from ..configs.networks import parse_network
from ..configs.schema import EventsConfig, KVAtlasConfig
from ..events.admission import Access, load_curve
from ..events.limits import ReplayLimits, StreamLimits
from ..events.options import SubscriberOptions
from ..events.subscriber import Subscriber
from ..indexer.atlas import Atlas
from ..indexer.factory import IndexCore, index_core
from ..indexer.tiers import TierTable
from .advertised.advertised import AdvertisedStreams
from .fleet import Fleet
from .gpus import Gpus
from .in_flight import Siblings
from .metrics import FleetMetrics
from .roster import Roster, Wanted, each_wanted, wanted_endpoints
from .scrape.loads import LoadTable
from .scrape.scraper import Scraper
from .settings import fleet_settings, scrape_settings, tier_specs
from .snapshots import Snapshots
from .state_metrics import fleet_families
from .tier_sources import log_source
from .turns import in_turns

log = logging.getLogger(__name__)


class ConfiguredFleet:
    """A fleet with the endpoints of a configuration; other sources may add more.

    Args:
        config: initial configuration; `fill` adds its endpoints.
        metrics: counters.
        siblings: as in `Fleet`.
    """

    def __init__(self, config: KVAtlasConfig, metrics: FleetMetrics, *, siblings: Siblings | None) -> None:
        tiers = TierTable(tier_specs(config.tiers))
        core = _core(metrics)
        self._loads = LoadTable(stale_after_s=config.metrics_scrape.stale_after)
        self._subscriber = Subscriber(_subscriber_options(config.events, core))
        self._scraper = Scraper(
            loads=self._loads,
            settings=scrape_settings(config.metrics_scrape),
            clock=time.monotonic,
            rng=random.random,
        )
        self.fleet = Fleet(
            atlas=Atlas(
                tiers=tiers,
                seed=config.index.hash_seed,
                core=core,
                on_source=lambda endpoint, rank, change: log_source(tiers, endpoint, rank, change),
            ),
            subscriber=self._subscriber,
            scraper=self._scraper,
            loads=self._loads,
            metrics=metrics,
            settings=fleet_settings(config),
            siblings=siblings,
        )
        """The endpoints of all sources."""
        self._gpus = Gpus(self.fleet)
        self._advertised = AdvertisedStreams(self.fleet, self._scraper, self._loads)
        self._roster = Roster(self.fleet)
        self._next: tuple[KVAtlasConfig | None, Mapping[str, Wanted]] = (None, {})
        """The configuration that was prepared last, and its endpoints."""
        self._gone: list[str] = []
        """Endpoints that take no requests any more."""

    @property
    def endpoints(self) -> Mapping[str, Wanted]:
        """The configured endpoints by name; a live view."""
        return self._roster.wanted

    def bind(self, events: EventsConfig) -> int | None:
        """Listen for publishers with `events.mode: bind`.

        Returns the TCP port, None without one.

        Raises:
            SubscriptionError: the address is in use or is no address of this machine, or the keys cannot be read.
        """
        if events.mode != "bind":
            return None
        scheme, _, where = self._subscriber.bind(events.bind, _access(events)).partition("://")
        log.info("events listens on %s", where)
        return int(where.rpartition(":")[2]) if scheme == "tcp" else None

    async def fill(self, config: KVAtlasConfig, snapshots: Snapshots) -> None:
        """Add the configured endpoints, restored from the snapshot if it has them.

        Raises:
            SubscriptionError: an event address cannot be used.
        """
        with snapshots.loading():
            for name, wanted in wanted_endpoints(config).items():
                self._roster.add(name, wanted, saved=snapshots.take(name, wanted))
                await asyncio.sleep(0)  # loading takes time: let health checks run
        self._gpus.configure(config.metrics_scrape.dcgm)

    async def prepare(self, config: KVAtlasConfig) -> None:
        """Add the new endpoints, a few at a time: they hold the event loop for 0.5 ms each. They take no requests yet.

        Raises:
            ConfigRefusedError: an event address cannot be used, or another source owns a name; the endpoints are those of
                before.
        """
        wanted = dict([each async for each in in_turns(each_wanted(config))])
        try:
            await _all(self._roster.preparing(wanted))  # most refusals, before anything has changed
            with contextlib.closing(self._roster.taking_in(wanted)) as steps:
                await _all(steps)
        finally:
            self.fleet.subscriptions.prepared()
        self._next = config, wanted

    def bring_to(self, config: KVAtlasConfig) -> None:
        """Apply another configuration in one step, after `prepare`; call `settle` afterwards.

        Raises:
            ConfigRefusedError: as in `Roster.switch`; the settings are as before.
        """
        wanted = self._next[1] if self._next[0] is config else wanted_endpoints(config)
        self._gone = self._roster.switch(wanted)
        self.fleet.configure(fleet_settings(config))
        self._scraper.configure(scrape_settings(config.metrics_scrape))
        self._loads.stale_after_s = config.metrics_scrape.stale_after
        self._gpus.configure(config.metrics_scrape.dcgm)

    async def settle(self) -> None:
        """Remove endpoints that take no requests any more, a few at a time, and evict blocks beyond smaller bounds."""
        gone, self._gone = self._gone, []
        await _all(self._roster.removing(gone))
        await self.fleet.release()
        for _ in self.fleet.shrinking():
            await asyncio.sleep(0)

    async def stop(self) -> None:
        """Remove the endpoints of all sources, and close all sockets."""
        await self._gpus.stop()
        await self._advertised.stop()
        for endpoint in list(self.fleet):
            await self.fleet.remove(endpoint.name)
        await self._scraper.stop()
        await self._subscriber.close()

    def follows_load(self, name: str) -> bool:
        """Return whether an endpoint publishes its load, so that it is scraped rarely."""
        return name in self._advertised.streams

    def families(self) -> Iterator[Metric]:
        """Yield the metrics of the fleet."""
        return fleet_families(self.fleet, self._subscriber)


async def _all(steps: Iterator[None]) -> None:
    async for _ in in_turns(steps):
        pass


def _subscriber_options(events: EventsConfig, core: IndexCore) -> SubscriberOptions:
    return SubscriberOptions(
        topic_prefix=events.topic_prefix,
        limits=StreamLimits(max_held_bytes=events.max_queued_bytes),
        replay_limits=ReplayLimits(
            max_batches=events.max_replay_batches,
            timeout_s=events.replay_timeout,
            max_queued_bytes=events.max_replay_bytes,
        ),
        decode=core.decode_batch,
    )


def _access(events: EventsConfig) -> Access:
    curve = events.curve
    return Access(
        networks=tuple(map(parse_network, events.bind_allow)),
        max_connections=events.bind_max_connections,
        curve=load_curve(curve.key_file, curve.peers_folder) if curve.key_file else None,
    )


def _core(metrics: FleetMetrics) -> IndexCore:
    core = index_core(os.environ.get("KVATLAS_INDEX") or None)
    metrics.index_native.set(core.name == "native")
    if core.name == "reference":
        log.warning(
            "the index runs in Python, with the same results but slower; install kvatlas with a C++20 compiler"
        )
    return core
