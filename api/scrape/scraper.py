"""The tasks that scrape: one for each endpoint, over one HTTP session."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from ...scorers.base import Rng
from .errors import ScrapeError
from .loads import LoadTable
from .report import VLLM, EngineFacts, EngineSeries, ReportReader
from .schedule import Staggering, next_tick

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest body read; vLLM writes about 80 kB, and about 30 kB more for each further data-parallel rank."""

_HEADERS = {
    "Accept": "text/plain;version=0.0.4",
    "Accept-Encoding": "identity",  # compressing costs the engine more than the bytes do
}

_logger = logging.getLogger(__name__)

FactsListener = Callable[[str, EngineFacts], None]
"""Told an endpoint's name and facts at its first scrape and whenever they differ from those before."""


@dataclass(frozen=True, slots=True)
class ScrapeStatus:
    """How scraping one endpoint goes.

    Attributes:
        url: what is scraped.
        facts: as last told, None before the first success.
        n_scrapes: scrapes that gave a report.
        n_errors: `ScrapeError.reason` -> scrapes that failed for it.
        failing: whether the last scrape failed.
        last_error: text of the last failure, kept after recovery; None when none failed.
        last_error_at: its monotonic time in seconds.
    """

    url: str
    facts: EngineFacts | None
    n_scrapes: int
    n_errors: Mapping[str, int]
    failing: bool
    last_error: str | None
    last_error_at: float | None


@dataclass(slots=True)
class _Target:
    """One endpoint being scraped."""

    name: str
    url: str
    reader: ReportReader
    facts: EngineFacts | None = None
    n_scrapes: int = 0
    n_errors: Counter[str] = field(default_factory=Counter[str])
    failing: bool = False
    last_error: str | None = None
    last_error_at: float | None = None


class Scraper:
    """Scrapes each endpoint at its own steady ticks, never twice at once, until it is removed.

    A failed scrape leaves the last load in place, which then grows stale.

    Args:
        loads: takes the loads; the time of a load is that of the request, so that its age is never understated.
        on_facts: told of changed facts, in the event loop.
        interval_s: time between two ticks of one endpoint; a tick that comes during a scrape is dropped.
        timeout_s: limit of one scrape, connecting included.
        clock: monotonic seconds, the clock of whoever reads `loads`.
        rng: where the ticks of the first endpoint lie; the others are spread from there.
        series: the engine's names.
        max_body_bytes: larger bodies are refused.
    """

    def __init__(
        self,
        *,
        loads: LoadTable,
        on_facts: FactsListener,
        interval_s: float,
        timeout_s: float,
        clock: Callable[[], float],
        rng: Rng,
        series: EngineSeries = VLLM,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._loads = loads
        self._on_facts = on_facts
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._series = series
        self._max_body_bytes = max_body_bytes
        self._staggering = Staggering(interval_s=interval_s, start=rng())
        self._targets: dict[str, _Target] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the session. Endpoints can be added from here on."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=_HEADERS,
            timeout=aiohttp.ClientTimeout(total=self._timeout_s),
        )

    async def stop(self) -> None:
        """Ends every scrape and closes the session; returns when nothing of it runs. The loads stay."""
        for name in list(self._targets):
            self._cancel(name)
        while self._ending:
            await asyncio.wait(self._ending)
        if self._session is not None:
            await self._session.close()
            self._session = None

    def add(self, name: str, url: str) -> None:
        """Scrapes `url` from now on as endpoint `name`.

        Raises:
            ValueError: the name is being scraped already, or the scraper is not started.
        """
        if self._session is None:
            raise ValueError(f"cannot scrape {name!r}: the scraper is not started")
        if name in self._targets:
            raise ValueError(f"endpoint {name!r} is scraped already, from {self._targets[name].url}")
        target = self._targets[name] = _Target(name, url, ReportReader(self._series))
        task = asyncio.create_task(self._run(target, self._session), name=f"scrape {name}")
        task.add_done_callback(_surface)
        self._tasks[name] = task

    def remove(self, name: str) -> None:
        """Stops scraping an endpoint and forgets its load, at once: a scrape in flight delivers nothing more.

        Raises:
            KeyError: nobody added it.
        """
        self._cancel(name)
        self._loads.remove(name)

    def status(self, name: str) -> ScrapeStatus:
        """How scraping that endpoint goes.

        Raises:
            KeyError: nobody added it.
        """
        target = self._targets[name]
        return ScrapeStatus(
            url=target.url,
            facts=target.facts,
            n_scrapes=target.n_scrapes,
            n_errors=dict(target.n_errors),
            failing=target.failing,
            last_error=target.last_error,
            last_error_at=target.last_error_at,
        )

    def _cancel(self, name: str) -> None:
        del self._targets[name]
        task = self._tasks.pop(name)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    async def _run(self, target: _Target, session: aiohttp.ClientSession) -> None:
        loop = asyncio.get_running_loop()
        first = tick = self._staggering.first_tick(loop.time())
        while True:
            await asyncio.sleep(tick - loop.time())
            await self._scrape(target, session)
            tick = next_tick(first=first, last=tick, interval_s=self._interval_s, now=loop.time())

    async def _scrape(self, target: _Target, session: aiohttp.ClientSession) -> None:
        now = self._clock()
        try:
            body = await self._fetch(target.url, session)
            report = target.reader.read(body, now=now)
        except ScrapeError as error:
            self._note_failure(target, error)
            return
        self._note_success(target)
        self._loads.put(target.name, report.load)
        if report.facts != target.facts:
            target.facts = report.facts
            self._on_facts(target.name, report.facts)

    async def _fetch(self, url: str, session: aiohttp.ClientSession) -> bytes:
        """The body at `url`. A redirect is an error: metrics are where the configuration says, or nowhere."""
        try:
            async with session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    raise ScrapeError("http_status", f"HTTP status {response.status}")
                body = bytearray()
                while chunk := await response.content.readany():
                    body += chunk
                    if len(body) > self._max_body_bytes:
                        raise ScrapeError("too_large", f"the answer is above {self._max_body_bytes} bytes")
                return bytes(body)
        except TimeoutError:
            raise ScrapeError("timeout", f"no complete answer within {self._timeout_s:g} s") from None
        # UnicodeError comes from host names that cannot be encoded for a lookup.
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            raise ScrapeError("unreachable", str(error) or type(error).__name__) from error

    def _note_failure(self, target: _Target, error: ScrapeError) -> None:
        if not target.failing:
            _logger.warning("scraping endpoint %s fails (%s): %s", target.name, target.url, error)
        target.failing = True
        target.n_errors[error.reason] += 1
        target.last_error = str(error)
        target.last_error_at = self._clock()

    def _note_success(self, target: _Target) -> None:
        if target.failing:
            _logger.info("scraping endpoint %s works again (%s)", target.name, target.url)
        target.failing = False
        target.n_scrapes += 1


def _surface(task: asyncio.Task[None]) -> None:
    """Hands the error of a task that ended by itself, a bug, to the loop's exception handler."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": f"task {task.get_name()!r} ended", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
