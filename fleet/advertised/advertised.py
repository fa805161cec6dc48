"""Follows the streams that engines say they have, of endpoints whose configuration names none.

An endpoint's engine is asked once after its first scrape, and after each restart. What the configuration says wins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time

from ...configs.endpoints import RankAddresses
from ...events.errors import SubscriptionError
from ...events.tasks import spawn
from ...scorers.core.model import Load
from ..endpoint import Endpoint
from ..fleet import Fleet
from ..scrape.errors import ScrapeError
from ..scrape.loads import LoadTable
from ..scrape.page import Page
from ..scrape.report import EngineFacts
from ..scrape.scraper import Scraper
from .load_stat import LoadStat, ServerLoad
from .load_streams import LoadStreams
from .server_info import Advertised, AdvertisedError, read_server_info

log = logging.getLogger(__name__)

ENGINE = "sglang"
"""The engine that describes its streams."""

TIMEOUT_S = 5.0
"""Limit of the time for one answer."""

RELIEF_S = 2.0
"""Time after a published load in which the endpoint is scraped rarely; engines repeat an unchanged load every second."""


class AdvertisedStreams:
    """Asks engines for their streams, and follows them.

    Args:
        fleet: gets addresses of events, block sizes and speeds.
        scraper: tells of new engines, and scrapes those less that publish their load. Its TLS holds for what they are asked too.
        loads: gets the loads.
    """

    def __init__(self, fleet: Fleet, scraper: Scraper, loads: LoadTable) -> None:
        self._fleet, self._scraper, self._loads = fleet, scraper, loads
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.streams = LoadStreams(self._loaded)
        """Subscriptions to published loads."""
        scraper.on_facts.append(self._found)
        fleet.forgotten.append(self._forgotten)

    async def stop(self) -> None:
        """Ask nobody, and follow no load any longer."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.streams.stop()

    def _found(self, name: str, _facts: EngineFacts) -> None:
        """Ask an engine that was scraped for the first time, or has other facts than before."""
        endpoint, status = self._fleet.get(name), self._scraper.status(name)
        if endpoint is None or status.engine != ENGINE or endpoint.addresses.serving is None:
            return
        self._stop_asking(name)
        self._asking[name] = spawn(self._ask(name, status.url), "server info", of=name)

    def _forgotten(self, name: str) -> None:
        self._stop_asking(name)
        self.streams.forget(name)

    def _stop_asking(self, name: str) -> None:
        task = self._asking.pop(name, None)
        if task is not None:
            task.cancel()

    async def _ask(self, name: str, metrics_url: str) -> None:
        endpoint = self._fleet.get(name)
        serving = endpoint.addresses.serving if endpoint is not None else None
        if endpoint is None or serving is None:
            return
        scheme = "https" if metrics_url.startswith("https:") else "http"
        try:
            tls = self._scraper.tls() if scheme == "https" else None
            with contextlib.closing(Page(f"{scheme}://{serving}/server_info", tls)) as page:
                found = read_server_info(await page.fetch(timeout_s=TIMEOUT_S), serving.host)
        except (ScrapeError, AdvertisedError) as error:
            log.info("%s: its own description of its event streams is not used: %s", name, error)
            return
        if found is not None and self._fleet.get(name) is endpoint:
            self._use(endpoint, found)

    def _use(self, endpoint: Endpoint, found: Advertised) -> None:
        self.streams.follow(endpoint.name, found.loads, found.load_topic)
        if not endpoint.addresses.asks_engine:
            return
        now = tuple(
            RankAddresses(
                rank.number,
                rank.subscription.events if rank.subscription else None,
                rank.subscription.replay if rank.subscription else None,
            )
            for rank in endpoint.ranks
        )
        if now != found.ranks:
            try:
                self._fleet.subscriptions.replace(endpoint, found.ranks)
            except SubscriptionError as error:
                log.warning(
                    "%s: the event streams that it names cannot be followed: %s", endpoint.name, error
                )
            self._fleet.changes += 1
            spawn(self._fleet.release(), "released sockets", of=endpoint.name)
            log.info(
                "%s: follows %d event stream(s) as its /server_info says", endpoint.name, len(found.ranks)
            )
            endpoint.use_block_size(endpoint.told_block_size, self._fleet.settings.approximate)
        if found.block_size is not None:
            endpoint.told_block_size = found.block_size
            endpoint.use_block_size(found.block_size, self._fleet.settings.approximate)

    def _loaded(self, name: str, stat: LoadStat, server: ServerLoad) -> None:
        endpoint = self._fleet.get(name)
        if endpoint is None:
            return
        before: Load | None = self._loads.last(name)
        load = server.take(stat, now=time.monotonic(), before=before)
        if server.prefill_tokens_per_s is not None:
            self._fleet.told_prefill_speed(name, server.prefill_tokens_per_s)
        if load is not None and (before is None or load.updated_at > before.updated_at):
            self._loads.put(name, load)
            self._scraper.relieve(name, RELIEF_S)
