"""One endpoint being scraped: its ticks, its connection, and how it goes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...configs.engines import EngineSeries
from .connection import MAX_BODY_BYTES, Destination, MetricsConnection, connect
from .errors import ScrapeError
from .loads import LoadTable
from .report import EngineFacts, EngineReport, ReportReader
from .schedule import Pace, Rhythm

_logger = logging.getLogger(__name__)

FactsListener = Callable[[str, EngineFacts], None]
"""Told an endpoint's name and facts at its first scrape and whenever they differ from those before."""


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """How endpoints are scraped.

    Attributes:
        rhythm: how often.
        timeout_s: limit of one scrape, connecting included.
        max_body_bytes: larger bodies are refused.
    """

    rhythm: Rhythm
    timeout_s: float
    max_body_bytes: int = MAX_BODY_BYTES


@dataclass
class ScrapeContext:
    """What all targets share.

    Attributes:
        settings: in force; a change counts from the next scrape on.
        loads: takes the loads.
        clock: monotonic seconds, for the time of loads.
    """

    settings: ScrapeSettings
    loads: LoadTable
    clock: Callable[[], float]

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """Checks the certificates of https endpoints. Made once, which takes 20 ms."""
        return ssl.create_default_context()


@dataclass(frozen=True, slots=True)
class ScrapeStatus:
    """How scraping one endpoint goes.

    Attributes:
        url: what is scraped.
        engine: whose names its series have, None until an answer showed it.
        interval_s: time between two scrapes as busy or idle as the endpoint is.
        facts: as last told, None before the first success.
        n_scrapes: scrapes that gave a report.
        n_errors: `ScrapeError.reason` -> scrapes that failed for it.
        failing: whether the last scrape failed.
        last_error: text of the last failure, kept after recovery; None when none failed.
        last_error_at: its monotonic time in seconds.
    """

    url: str
    engine: str | None
    interval_s: float
    facts: EngineFacts | None
    n_scrapes: int
    n_errors: Mapping[str, int]
    failing: bool
    last_error: str | None
    last_error_at: float | None


class Target:
    """One endpoint, scraped from `start` to `stop`. Implements `connection.Asker`.

    Its one timer is either for the next scrape or for the limit of the one under way, so there are never two at once.

    Args:
        name: of the endpoint.
        url: of its metrics.
        engines: engines it may be.
        pace: its ticks.
        context: what all targets share.
        on_facts: called with changed facts.
    """

    def __init__(
        self,
        name: str,
        url: str,
        engines: Mapping[str, EngineSeries],
        *,
        pace: Pace,
        context: ScrapeContext,
        on_facts: FactsListener,
    ) -> None:
        self.name = name
        self._engines = engines
        self._destination = Destination.of(url)
        self._pace, self._context, self._on_facts = pace, context, on_facts
        self._reader = ReportReader(engines)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._connection: MetricsConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._request = self._destination.request()
        self._asks_by_name = False
        self._knows_names = True
        self._is_under_way = self._is_retry = False
        self._asked_at = 0.0
        self._began = self._due = self._loop.time()
        self._facts: EngineFacts | None = None
        self._n_scrapes = 0
        self._n_errors: Counter[str] = Counter()
        self._failing = False
        self._last_error: str | None = None
        self._last_error_at: float | None = None

    def start(self) -> None:
        """Scrape from now on; the first time soon."""
        self._await_tick(self._pace.first(self._context.settings.rhythm, now=self._loop.time()))

    def stop(self) -> asyncio.Task[None] | None:
        """Scrape no more, at once; returns what is still ending."""
        self._end_scrape()
        self._hang_up()
        return self._connecting

    def picked(self) -> None:
        """A request is on its way to the endpoint: what is known of its load must be fresh."""
        now = self._loop.time()
        self._bring_forward(self._pace.picked(self._context.settings.rhythm, began=self._began, now=now))

    def retime(self) -> None:
        """The settings changed: a tick that is further off than under them comes sooner."""
        self._bring_forward(self._pace.first(self._context.settings.rhythm, now=self._loop.time()))

    def rename(self, engines: Mapping[str, EngineSeries]) -> None:
        """The endpoint may be any of other engines; an answer under way has the series of those before."""
        if engines == self._engines:
            return
        self._engines, self._reader = engines, ReportReader(engines)
        self._knows_names = True
        self._ask_for(())
        if self._is_under_way:
            self._hang_up()
        self._await_tick(self._pace.first(self._context.settings.rhythm, now=self._loop.time()))

    def status(self) -> ScrapeStatus:
        """How it goes."""
        return ScrapeStatus(
            url=self._destination.shown,
            engine=self._reader.engine,
            interval_s=self._pace.period_s(self._context.settings.rhythm),
            facts=self._facts,
            n_scrapes=self._n_scrapes,
            n_errors=dict(self._n_errors),
            failing=self._failing,
            last_error=self._last_error,
            last_error_at=self._last_error_at,
        )

    # -- one scrape -----------------------------------------------------------------------------------------------

    def answered(self, status: int, body: bytes) -> None:
        """See `Asker`. A redirect is an error: metrics are where the configuration says, or nowhere."""
        if status != 200:
            self._note_failure(ScrapeError("http_status", f"HTTP status {status}"))
            return
        try:
            report = self._reader.read(body, now=self._asked_at)
        except ScrapeError as error:
            self._note_failure(error)
        else:
            self._note_success(report)

    def failed(self, error: ScrapeError, *, untouched: bool) -> None:
        """See `Asker`. A server may close a kept connection at any time: asked again over a new one, once."""
        if untouched and not self._is_retry:
            self._is_retry = True
            self._ask()
        else:
            self._note_failure(error)

    def _bring_forward(self, due: float) -> None:
        """Scrape at `due` where the next tick is much later; a busy endpoint's is not, and stays on its grid."""
        if not self._is_under_way and self._due - due > self._context.settings.rhythm.interval_s / 2:
            self._await_tick(due)

    def _await_tick(self, due: float) -> None:
        self._end_scrape()
        self._due = due
        self._timer = self._loop.call_at(due, self._begin)

    def _begin(self) -> None:
        self._is_under_way, self._is_retry = True, False
        self._asked_at, self._began = self._context.clock(), self._loop.time()
        self._timer = self._loop.call_later(self._context.settings.timeout_s, self._time_out)
        self._ask()

    def _ask(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.ask(self._request)
        else:
            self._connecting = self._loop.create_task(self._connect(), name=f"scrape {self.name}")

    async def _connect(self) -> None:
        connection = MetricsConnection(self, max_body_bytes=self._context.settings.max_body_bytes)
        tls = self._context.tls if self._destination.is_tls else None
        try:
            await connect(self._destination, connection, tls)
        except ScrapeError as error:
            self._note_failure(error)
            return
        if not connection.is_open:
            self._note_failure(ScrapeError("unreachable", "the connection was closed at once"))
            return
        self._connection = connection
        self._reader.new_connection()
        connection.ask(self._request)

    def _time_out(self) -> None:
        limit_s = self._context.settings.timeout_s
        self._hang_up()
        self._note_failure(ScrapeError("timeout", f"no complete answer within {limit_s:g} s"))

    def _hang_up(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _end_scrape(self) -> None:
        self._is_under_way = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_next(self, *, shows_work: bool) -> None:
        rhythm, now = self._context.settings.rhythm, self._loop.time()
        self._await_tick(self._pace.after(rhythm, began=self._began, now=now, shows_work=shows_work))

    # -- how it goes ----------------------------------------------------------------------------------------------

    def _note_failure(self, error: ScrapeError) -> None:
        if not self._failing:
            _logger.warning("scraping endpoint %s fails (%s): %s", self.name, self._destination.shown, error)
        self._failing = True
        self._n_errors[error.reason] += 1
        self._last_error, self._last_error_at = str(error), self._context.clock()
        if error.reason in ("missing_series", "http_status"):
            self._knows_names = not self._asks_by_name
            self._ask_for(())
        self._await_next(shows_work=False)

    def _note_success(self, report: EngineReport) -> None:
        if self._failing:
            _logger.info("scraping endpoint %s works again (%s)", self.name, self._destination.shown)
        self._failing = False
        self._n_scrapes += 1
        if self._knows_names and not self._asks_by_name:
            self._ask_for(self._reader.names)
        self._await_next(shows_work=report.load.waiting + report.load.running > 0)
        self._context.loads.put(self.name, report.load)
        if report.facts != self._facts:
            self._facts = report.facts
            self._knows_names = True  # another process may, though the one before did not
            self._on_facts(self.name, report.facts)

    def _ask_for(self, names: Sequence[str]) -> None:
        """Ask for the series called `names`, of all when there are none.

        A server that does not know the parameter answers as ever; one whose filter finds nothing, as SGLang's and
        TensorRT-LLM's with several processes, is not asked so again until it has failed without it too.
        """
        self._asks_by_name = bool(names)
        self._request = self._destination.request(names)
