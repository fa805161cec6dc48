"""Scrapes every endpoint, each at ticks and over a connection of its own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

from ...configs.engines import EngineSeries
from ...scorers.core.base import Rng
from .loads import LoadTable
from .report import EngineFacts
from .schedule import Schedule, Spread
from .target import Accounts, FactsListener, ScrapeContext, ScrapeSettings, ScrapeStatus, Target


class Scraper:
    """Scrapes each endpoint at its own ticks, one request at a time, until it is removed.

    A failed scrape keeps the last load, which then becomes stale.

    Args:
        loads: gets the loads; the time of a load is that of its request, so that its age is never understated.
        settings: initial settings; `configure` replaces them.
        clock: monotonic seconds; readers of `loads` use the same clock.
        rng: uniform in [0, 1); phase of the first endpoint.
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
        self._spread = Spread(rng())
        self.on_facts: list[FactsListener] = []
        """Further callbacks, called with the facts of every endpoint after the one given to `add`."""
        self._targets: dict[str, Target] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def configure(self, settings: ScrapeSettings) -> None:
        """Replace the settings; a running scrape ends with those it began with. Equal ones change nothing."""
        if settings == self._context.settings:  # usual, and there may be a thousand targets
            return
        self._context.settings = settings
        for target in self._targets.values():
            target.retime()

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context of https endpoints; raises as `ScrapeContext.tls`."""
        return self._context.tls()

    def use_accounts(self, accounts: Accounts) -> None:
        """Ask `accounts` before and after each scrape which requests are no news."""
        self._context.accounts = accounts

    def add(
        self, name: str, url: str, engines: Mapping[str, EngineSeries], *, on_facts: FactsListener
    ) -> None:
        """Start to scrape an endpoint.

        Args:
            name: unique name.
            url: URL of its metrics.
            engines: possible engines by name.
            on_facts: called with its facts.

        Raises:
            ValueError: an endpoint of that name is being scraped.
        """
        if name in self._targets:
            raise ValueError(f"endpoint {name!r} is scraped already, from {self._targets[name].status().url}")
        target = Target(
            name,
            url,
            engines,
            schedule=Schedule(self._spread.take()),
            context=self._context,
            on_facts=self._all_told(on_facts),
        )
        self._targets[name] = target
        target.start()

    def move(
        self, name: str, url: str | None, engines: Mapping[str, EngineSeries], *, on_facts: FactsListener
    ) -> None:
        """Scrape an endpoint at this URL from now on, and keep its last load until then; None stops. Arguments as `add`."""
        if name in self._targets:
            self._stop(name)
            if url is None:
                self._context.loads.remove(name)
        if url is not None:
            self.add(name, url, engines, on_facts=on_facts)

    def rename(self, name: str, engines: Mapping[str, EngineSeries]) -> None:
        """Replace the possible engines of an endpoint; does nothing if they are the same.

        Raises:
            KeyError: no endpoint of that name is being scraped.
        """
        self._targets[name].rename(engines)

    def remove(self, name: str) -> None:
        """Stop scraping an endpoint and forget its load, at once; the result of a running scrape is dropped.

        Raises:
            KeyError: no endpoint of that name is being scraped.
        """
        self._stop(name)
        self._context.loads.remove(name)

    def picked(self, name: str) -> None:
        """Scrape an idle endpoint soon, because a request was sent to it. Unknown names are ignored."""
        target = self._targets.get(name)
        if target is not None:
            target.picked()

    def relieve(self, name: str, seconds: float) -> None:
        """Scrape an endpoint rarely for some time: its load is known from elsewhere. Unknown names are ignored."""
        target = self._targets.get(name)
        if target is not None:
            target.relieve(seconds)

    def status(self, name: str) -> ScrapeStatus:
        """Return the state of scraping an endpoint.

        Raises:
            KeyError: no endpoint of that name is being scraped.
        """
        return self._targets[name].status()

    async def stop(self) -> None:
        """Stop all scrapes, and wait until no task is left. The loads stay."""
        for name in list(self._targets):
            self._stop(name)
        while self._ending:
            await asyncio.wait(self._ending)

    def _all_told(self, first: FactsListener) -> FactsListener:
        def tell(name: str, facts: EngineFacts) -> None:
            first(name, facts)
            for listener in self.on_facts:
                listener(name, facts)

        return tell

    def _stop(self, name: str) -> None:
        task = self._targets.pop(name).stop()
        if task is not None and not task.done():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
