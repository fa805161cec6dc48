"""Scrapes every endpoint, each at ticks and over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ...configs.engines import EngineSeries
from ...scorers.core.base import Rng
from .loads import LoadTable
from .schedule import Pace, Places
from .target import FactsListener, ScrapeContext, ScrapeSettings, ScrapeStatus, Target


class Scraper:
    """Scrapes each endpoint at its own ticks, never twice at once, until it is removed.

    A failed scrape leaves the last load in place, which then grows stale.

    Args:
        loads: takes the loads; the time of a load is that of the request, so that its age is never understated.
        settings: how often, how long.
        clock: monotonic seconds, the clock of whoever reads `loads`.
        rng: where the ticks of the first endpoint lie; the others are spread from there.
    """

    def __init__(
        self,
        *,
        loads: LoadTable,
        settings: ScrapeSettings,
        clock: Callable[[], float],
        rng: Rng,
    ) -> None:
        self._context = ScrapeContext(settings, loads, clock)
        self._places = Places(rng())
        self._targets: dict[str, Target] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def configure(self, settings: ScrapeSettings) -> None:
        """Scrape by other settings from now on; a scrape under way ends by those it began with."""
        self._context.settings = settings
        for target in self._targets.values():
            target.retime()

    def add(
        self, name: str, url: str, engines: Mapping[str, EngineSeries], *, on_facts: FactsListener
    ) -> None:
        """Scrape `url` from now on as endpoint `name`, which may be any of `engines`.

        Raises:
            ValueError: the name is being scraped already.
        """
        if name in self._targets:
            raise ValueError(f"endpoint {name!r} is scraped already, from {self._targets[name].status().url}")
        target = Target(
            name, url, engines, pace=Pace(self._places.take()), context=self._context, on_facts=on_facts
        )
        self._targets[name] = target
        target.start()

    def rename(self, name: str, engines: Mapping[str, EngineSeries]) -> None:
        """Let the endpoint be any of other engines; where it may be already, nothing happens.

        Raises:
            KeyError: nobody added it.
        """
        self._targets[name].rename(engines)

    def remove(self, name: str) -> None:
        """Stop scraping an endpoint and forget its load, at once: a scrape in flight delivers nothing more.

        Raises:
            KeyError: nobody added it.
        """
        self._stop(name)
        self._context.loads.remove(name)

    def picked(self, name: str) -> None:
        """A request was sent to the endpoint: an idle one is scraped at once. Unknown names are ignored."""
        target = self._targets.get(name)
        if target is not None:
            target.picked()

    def status(self, name: str) -> ScrapeStatus:
        """How scraping that endpoint goes.

        Raises:
            KeyError: nobody added it.
        """
        return self._targets[name].status()

    async def stop(self) -> None:
        """End every scrape; returns when nothing of it runs. The loads stay."""
        for name in list(self._targets):
            self._stop(name)
        while self._ending:
            await asyncio.wait(self._ending)

    def _stop(self, name: str) -> None:
        task = self._targets.pop(name).stop()
        if task is not None and not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
