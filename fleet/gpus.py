"""The attribute `GPUUtilization` of endpoints, from DCGM exporters."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Iterable, Mapping

from ..configs.dcgm import GPU_UTILIZATION, DcgmConfig
from ..configs.endpoints import EndpointAddresses
from ..configs.scraping import ScrapeTlsConfig
from ..events.tasks import keep
from .fleet import Fleet
from .scrape.errors import ScrapeError
from .scrape.gpu import SERIES, utilization_of
from .scrape.page import Page
from .scrape.tls import tls_context

log = logging.getLogger(__name__)

MAX_AT_ONCE = 16
"""Most pages that are fetched at one time."""

TIMEOUT_S = 5.0
"""Limit of the time for one page; an exporter of eight GPUs takes some milliseconds."""

STALE_ROUNDS = 3
"""Missed rounds after which a utilization is unknown."""


class Gpus:
    """Scrapes the exporters while the configuration has them scraped; endpoints of one node share one page.

    Args:
        fleet: gets the attribute.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._config = DcgmConfig()
        self._task: asyncio.Task[None] | None = None
        self._pages: dict[str, Page] = {}
        self._fetched_at: dict[str, float] = {}
        self._failing: set[str] = set()

    def configure(self, config: DcgmConfig) -> None:
        """Begin, go on by other settings, or end."""
        if config == self._config:
            return
        self._config = config
        self._end()
        if config.enabled:
            self._task = keep(self._run, "GPUs", needed=False)

    async def stop(self) -> None:
        """End, and wait for the task."""
        task = self._task
        self._end()
        if task is not None:
            await asyncio.wait([task])

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        for page in self._pages.values():
            page.close()
        self._pages, self._fetched_at, self._failing = {}, {}, set()

    async def _run(self) -> None:
        tls = (
            tls_context(ScrapeTlsConfig(verify=self._config.verify))
            if self._config.scheme == "https"
            else None
        )
        while True:
            began = time.monotonic()
            await self._round(tls)
            await asyncio.sleep(max(0.0, began + self._config.interval - time.monotonic()))

    async def _round(self, tls: ssl.SSLContext | None) -> None:
        """Fetch the page of every exporter once."""
        wanted: dict[str, list[str]] = {}
        for endpoint in self._fleet:
            url = _url(self._config, endpoint.addresses)
            if url is not None:
                wanted.setdefault(url, []).append(endpoint.name)
        for url in self._pages.keys() - wanted.keys():
            self._pages.pop(url).close()
            self._fetched_at.pop(url, None)
            self._failing.discard(url)
        turn = asyncio.Semaphore(MAX_AT_ONCE)

        async def follow(url: str, names: list[str]) -> None:
            async with turn:
                await self._follow(self._pages.setdefault(url, Page(url, tls)), url, names)

        await asyncio.gather(*(follow(url, names) for url, names in wanted.items()))

    async def _follow(self, page: Page, url: str, names: list[str]) -> None:
        try:
            body = await page.fetch(SERIES, timeout_s=TIMEOUT_S)
            found = utilization_of(body, names)
        except ScrapeError as error:
            if url not in self._failing:
                log.warning("scraping the GPUs of %s fails (%s): %s", _shown(names), page.shown, error)
            self._failing.add(url)
            missed_s = time.monotonic() - self._fetched_at.get(url, -math.inf)
            if missed_s > STALE_ROUNDS * self._config.interval:
                self._show(dict.fromkeys(names, math.nan))
            return
        if url in self._failing:
            log.info("scraping the GPUs of %s works again (%s)", _shown(names), page.shown)
            self._failing.discard(url)
        self._fetched_at[url] = time.monotonic()
        self._show(found)

    def _show(self, found: Mapping[str, float]) -> None:
        for name, value in found.items():
            self._fleet.set_attributes(name, {GPU_UTILIZATION: value})


def _url(config: DcgmConfig, addresses: EndpointAddresses) -> str | None:
    """Return the URL of an endpoint's exporter, None if its host is unknown."""
    serving = addresses.serving
    if serving is None:
        return None
    host = addresses.node if config.use_node_address and addresses.node else serving.url_host
    return f"{config.scheme}://{host}:{config.port}/{config.page.lstrip('/')}"


def _shown(names: Iterable[str]) -> str:
    first, *rest = names
    return first if not rest else f"{first} and {len(rest)} more"
