"""Scraping of one endpoint: its ticks, its connection and its status."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...configs.engines import EngineSeries
from ...configs.scraping import ScrapeTlsConfig
from .connection import MAX_BODY_BYTES, Destination, MetricsConnection, connect
from .errors import ScrapeError
from .loads import LoadTable
from .report import EngineFacts, EngineReport, ReportReader
from .schedule import Intervals, Schedule
from .tls import tls_context

log = logging.getLogger(__name__)

FactsListener = Callable[[str, EngineFacts], None]
"""Called with an endpoint's name and facts after its first scrape, and whenever they have changed."""


class KnownLoad(NamedTuple):
    """What is known of an endpoint without a scrape.

    Attributes:
        requests: requests in flight.
        max_age_s: age up to which a scraped load will do while it shows no more requests than these.
    """

    requests: int
    max_age_s: float


class Accounts(Protocol):
    """What is known of endpoints without scraping them."""

    @property
    def max_age_s(self) -> Callable[[], float]:
        """Return a function that returns the age up to which known loads will do now, in seconds."""
        ...

    def of(self, endpoint: str) -> KnownLoad | None:
        """Return what is known of an endpoint, None if every request is news."""
        ...


class NoAccounts:
    """Accounts of a process that knows nothing. Implements `Accounts`."""

    def max_age_s(self) -> float:
        """Return 0."""
        return 0.0

    def of(self, endpoint: str) -> KnownLoad | None:  # noqa: ARG002 (Accounts)
        """Return None."""
        return None


SYSTEM_TLS = ScrapeTlsConfig()
"""Certificates that the system trusts."""


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    """Settings of all scrapes.

    Attributes:
        intervals: intervals between scrapes.
        timeout_s: time limit per scrape, connecting included.
        max_body_bytes: larger bodies are refused.
        tls: TLS of https URLs.
    """

    intervals: Intervals
    timeout_s: float
    max_body_bytes: int = MAX_BODY_BYTES
    tls: ScrapeTlsConfig = SYSTEM_TLS


@dataclass
class ScrapeContext:
    """Settings and objects shared by all targets.

    Attributes:
        settings: current settings; a change applies from the next scrape on, that of `tls` from the next connection on.
        loads: gets the loads.
        clock: monotonic seconds, for the time of loads.
        accounts: see `Accounts`.
    """

    settings: ScrapeSettings
    loads: LoadTable
    clock: Callable[[], float]
    accounts: Accounts = field(default_factory=NoAccounts)

    def tls(self) -> ssl.SSLContext:
        """Return the TLS context of https endpoints.

        Raises:
            ScrapeError: a file of the settings cannot be read.
        """
        return tls_context(self.settings.tls)


@dataclass(frozen=True, slots=True)
class ScrapeStatus:
    """State of scraping one endpoint.

    Attributes:
        url: scraped URL.
        engine: name of its engine; None until a response has shown it.
        interval_s: current time between two scrapes.
        facts: last known facts; None before the first success.
        n_scrapes: successful scrapes.
        n_errors: `ScrapeError.reason` -> failed scrapes.
        failing: whether the last scrape failed.
        last_error: text of the last failure, kept after recovery; None if none failed.
        last_reason: its `ScrapeError.reason`.
        last_error_at: monotonic seconds of that failure.
    """

    url: str
    engine: str | None
    interval_s: float
    facts: EngineFacts | None
    n_scrapes: int
    n_errors: Mapping[str, int]
    failing: bool
    last_error: str | None
    last_reason: str | None
    last_error_at: float | None


class Target:
    """One endpoint, scraped from `start` to `stop`. Implements `connection.ResponseHandler`.

    It has one timer, either for the next scrape or for the timeout of the running one, so that scrapes never overlap.

    Args:
        name: name of the endpoint.
        url: URL of its metrics.
        engines: possible engines by name.
        schedule: its scrape times.
        context: shared by all targets.
        on_facts: called with changed facts.
    """

    def __init__(
        self,
        name: str,
        url: str,
        engines: Mapping[str, EngineSeries],
        *,
        schedule: Schedule,
        context: ScrapeContext,
        on_facts: FactsListener,
    ) -> None:
        self.name = name
        self._engines = engines
        self._destination = Destination.of(url)
        self._schedule, self._context, self._on_facts = schedule, context, on_facts
        self._reader = ReportReader(engines)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._connection: MetricsConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._request = self._destination.request()
        self._is_filtered = False
        self._supports_filter = True
        self._is_running = self._is_retry = False
        self._sent_at = 0.0
        self._known_before: KnownLoad | None = None
        self._began = self._due = self._loop.time()
        self._facts: EngineFacts | None = None
        self._n_scrapes = 0
        self._n_errors: Counter[str] = Counter()
        self._failing = False
        self._last_error: str | None = None
        self._last_reason: str | None = None
        self._last_error_at: float | None = None

    def start(self) -> None:
        """Start to scrape; the first scrape comes soon."""
        self._schedule_at(self._schedule.first(self._context.settings.intervals, now=self._loop.time()))

    def stop(self) -> asyncio.Task[None] | None:
        """Stop at once; return the task that is still ending, if any."""
        self._end_scrape()
        self._disconnect()
        return self._connecting

    def picked(self) -> None:
        """Scrape before the load is older than decisions accept, because a request was sent to the endpoint."""
        max_age_s, now = self._context.accounts.max_age_s(), self._loop.time()
        if max_age_s == math.inf:
            return
        self._bring_forward(
            self._schedule.picked(
                self._context.settings.intervals, began=self._began, now=now, max_age_s=max_age_s
            )
        )

    def relieve(self, seconds: float) -> None:
        """Scrape rarely for some time, from the next scrape on: the load is known from elsewhere."""
        self._schedule.relieve(self._loop.time() + seconds)

    def retime(self) -> None:
        """Move the next tick forward if the changed settings require it."""
        self._bring_forward(self._schedule.first(self._context.settings.intervals, now=self._loop.time()))

    def rename(self, engines: Mapping[str, EngineSeries]) -> None:
        """Replace the possible engines; the response to a running scrape is dropped."""
        if engines == self._engines:
            return
        self._engines, self._reader = engines, ReportReader(engines)
        self._supports_filter = True
        self._request_series(())
        if self._is_running:
            self._disconnect()
        self._schedule_at(self._schedule.first(self._context.settings.intervals, now=self._loop.time()))

    def status(self) -> ScrapeStatus:
        """Return the current state."""
        return ScrapeStatus(
            url=self._destination.shown,
            engine=self._reader.engine,
            interval_s=self._schedule.period_s(self._context.settings.intervals),
            facts=self._facts,
            n_scrapes=self._n_scrapes,
            n_errors=dict(self._n_errors),
            failing=self._failing,
            last_error=self._last_error,
            last_reason=self._last_reason,
            last_error_at=self._last_error_at,
        )

    # -- one scrape -----------------------------------------------------------------------------------------------

    def responded(self, status: int, body: bytes) -> None:
        """Read a response. A redirect is an error, since the configuration gives the URL."""
        if status != 200:
            self._note_failure(ScrapeError("http_status", f"HTTP status {status}"))
            return
        try:
            report = self._reader.read(body, now=self._sent_at)
        except ScrapeError as error:
            self._note_failure(error)
        else:
            self._note_success(report)

    def failed(self, error: ScrapeError, *, untouched: bool) -> None:
        """Handle a failed request. If an idle connection was closed, retry once over a new one."""
        if untouched and not self._is_retry:
            self._is_retry = True
            self._send()
        else:
            self._note_failure(error)

    def _bring_forward(self, due: float) -> None:
        """Scrape at `due` if the next tick is much later; the ticks of a busy endpoint stay as they are."""
        if not self._is_running and self._due - due > self._context.settings.intervals.interval_s / 2:
            self._schedule_at(due)

    def _schedule_at(self, due: float) -> None:
        self._end_scrape()
        self._due = due
        self._timer = self._loop.call_at(due, self._begin)

    def _begin(self) -> None:
        self._is_running, self._is_retry = True, False
        self._sent_at, self._began = self._context.clock(), self._loop.time()
        self._known_before = self._context.accounts.of(self.name)
        self._timer = self._loop.call_later(self._context.settings.timeout_s, self._time_out)
        self._send()

    def _send(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.send(self._request)
        else:
            self._connecting = self._loop.create_task(self._connect(), name=f"scrape {self.name}")

    async def _connect(self) -> None:
        connection = MetricsConnection(self, max_body_bytes=self._context.settings.max_body_bytes)
        try:
            tls = self._context.tls() if self._destination.is_tls else None
            await connect(self._destination, connection, tls)
        except ScrapeError as error:
            self._note_failure(error)
            return
        if not connection.is_open:
            self._note_failure(ScrapeError("unreachable", "the connection was closed at once"))
            return
        self._connection = connection
        self._reader.new_connection()
        connection.send(self._request)

    def _time_out(self) -> None:
        limit_s = self._context.settings.timeout_s
        self._disconnect()
        self._note_failure(ScrapeError("timeout", f"no complete response within {limit_s:g} s"))

    def _disconnect(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _end_scrape(self) -> None:
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_next(self, n_requests: int) -> None:
        """Schedule the next scrape, after one that showed `n_requests`."""
        intervals, now = self._context.settings.intervals, self._loop.time()
        before, after = self._known_before, self._context.accounts.of(self.name)
        n_known, max_age_s = 0, math.inf
        if before is not None and after is not None and n_requests:
            n_known, max_age_s = max(before.requests, after.requests), after.max_age_s
        self._schedule_at(
            self._schedule.after(
                intervals,
                began=self._began,
                now=now,
                shows_work=n_requests > n_known,
                max_age_s=max_age_s,
            )
        )

    # -- status --------------------------------------------------------------------------------------------------

    def _note_failure(self, error: ScrapeError) -> None:
        if not self._failing:
            log.warning("scraping endpoint %s fails (%s): %s", self.name, self._destination.shown, error)
        self._failing = True
        self._n_errors[error.reason] += 1
        self._last_error, self._last_reason = str(error), error.reason
        self._last_error_at = self._context.clock()
        if error.reason in ("missing_series", "http_status"):
            self._supports_filter = not self._is_filtered
            self._request_series(())
        self._schedule_next(0)

    def _note_success(self, report: EngineReport) -> None:
        if self._failing:
            log.info("scraping endpoint %s works again (%s)", self.name, self._destination.shown)
        self._failing = False
        self._n_scrapes += 1
        if self._supports_filter and not self._is_filtered:
            self._request_series(self._reader.names)
        self._schedule_next(report.load.waiting + report.load.running)
        self._context.loads.put(self.name, report.load)
        if report.facts != self._facts:
            self._facts = report.facts
            self._supports_filter = True  # the restarted process may support it
            self._on_facts(self.name, report.facts)

    def _request_series(self, names: Sequence[str]) -> None:
        """Request the series `names`, or all series if that is empty.

        A server without this parameter sends all series. With several processes, the filter of SGLang and TensorRT-LLM
        finds nothing: such a server is not filtered again until it has failed without a filter too.
        """
        self._is_filtered = bool(names)
        self._request = self._destination.request(names)
