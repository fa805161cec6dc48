"""Cost of scraping `/metrics`, and age of the data.

The servers run in a process of their own (`scrape_servers.py`) and send an exposition that a real vLLM 0.32 wrote, with
changing numbers. The scraper is kvatlas' own, alone in its process on an event loop of uvloop; its CPU time, user and
system, divided by the time that passed is its share of a core. Ages are those that a decision at a random moment would
meet. `aiohttp` is the same reader behind a general HTTP client, for comparison. Rounds are interleaved. The second table has
fleets of several sizes with few busy servers, as most fleets have at night.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop

from kvatlas.configs.engines import ENGINES
from kvatlas.fleet.scrape.loads import LoadTable
from kvatlas.fleet.scrape.report import ReportReader
from kvatlas.fleet.scrape.schedule import Intervals
from kvatlas.fleet.scrape.scraper import Scraper
from kvatlas.fleet.scrape.target import ScrapeSettings
from kvatlas.scorers.core.model import Load

from ..common.benchmark import Benchmark
from ..common.fleet_sizes import add_fleet_sizes
from ..common.processes import raise_file_limit
from ..common.tables import Cell, Table

HERE = Path(__file__).parent
BODY = HERE.parents[1] / "tests" / "golden" / "vllm-0.32.0" / "metrics_run5.txt"
STALE_AFTER_S = 2.0
WARM_UP_S = 4.0
"""Long enough for idle endpoints to reach their longest interval."""


@dataclass(frozen=True)
class Case:
    """One kind of fleet; `n_busy` servers show a queue, all if it is None."""

    name: str
    waiting: int = 0
    n_busy: int | None = None
    filters: bool = False
    with_aiohttp: bool = False


CASES = (
    Case("busy", waiting=9),
    Case("busy, with aiohttp", waiting=9, with_aiohttp=True),
    Case("busy, answering by name", waiting=9, filters=True),
    Case("idle"),
)
COST = ("scrapes/s", "us each", "cores")
N_BUSY = 30
"""Busy servers of a fleet of any size, if it has as many."""


class TimedLoads(LoadTable):
    """Loads, with the times between two of each endpoint."""

    def __init__(self) -> None:
        super().__init__(stale_after_s=STALE_AFTER_S)
        self.gaps: dict[str, list[float]] = defaultdict(list)
        self._last: dict[str, float] = {}

    def put(self, name: str, load: Load) -> None:
        """See `LoadTable.put`."""
        if name in self._last:
            self.gaps[name].append(load.updated_at - self._last[name])
        self._last[name] = load.updated_at
        super().put(name, load)


@dataclass
class Figures:
    """Figures of all rounds of one case; gaps and ages in seconds, those of idle servers among busy ones apart."""

    cores: list[float] = field(default_factory=list[float])
    per_scrape_us: list[float] = field(default_factory=list[float])
    scrapes_per_s: list[float] = field(default_factory=list[float])
    gaps: list[float] = field(default_factory=list[float])
    ages: list[float] = field(default_factory=list[float])
    idle_ages: list[float] = field(default_factory=list[float])


@asynccontextmanager
async def servers(n_servers: int, case: Case) -> AsyncGenerator[list[str]]:
    """Run the servers; yields their URLs."""
    arguments = [f"--servers={n_servers}", f"--body={BODY}", f"--waiting={case.waiting}"]
    if case.n_busy is not None:
        arguments.append(f"--busy={case.n_busy}")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(HERE / "scrape_servers.py"), *arguments, *(["--filter"] if case.filters else [])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        ports = (await process.stdout.readline()).split() if process.stdout else []
        yield [f"http://127.0.0.1:{int(port)}/metrics" for port in ports]
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


@asynccontextmanager
async def scraping(urls: Sequence[str], loads: LoadTable, interval_s: float) -> AsyncGenerator[None]:
    """Run the scraper of kvatlas."""
    settings = ScrapeSettings(Intervals(interval_s, max(interval_s, STALE_AFTER_S / 2)), timeout_s=1.0)
    scraper = Scraper(
        loads=loads,
        settings=settings,
        clock=time.monotonic,
        rng=random.random,
    )
    for url in urls:
        scraper.add(url, url, ENGINES, on_facts=lambda _name, _facts: None)
    yield
    errors = {reason for url in urls for reason in scraper.status(url).n_errors}
    await scraper.stop()
    if errors:
        raise RuntimeError(f"scrapes failed: {errors}")


@asynccontextmanager
async def scraping_with_aiohttp(
    urls: Sequence[str], loads: LoadTable, interval_s: float
) -> AsyncGenerator[None]:
    """Run one task per endpoint that requests with aiohttp and reads as kvatlas does."""

    async def scrape(url: str, start: float, session: aiohttp.ClientSession) -> None:
        reader, loop = ReportReader(ENGINES), asyncio.get_running_loop()
        for number in range(1_000_000):
            await asyncio.sleep(start + number * interval_s - loop.time())
            now = time.monotonic()
            async with session.get(url) as response:
                loads.put(url, reader.read(await response.read(), now=now).load)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        first = asyncio.get_running_loop().time()
        tasks = [
            asyncio.create_task(scrape(url, first + interval_s * number / len(urls), session))
            for number, url in enumerate(urls)
        ]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(case: Case, n_servers: int, options: argparse.Namespace, figures: Figures) -> None:
    """Measure one round of one case."""
    loads = TimedLoads()
    run = scraping_with_aiohttp if case.with_aiohttp else scraping
    async with servers(n_servers, case) as urls, run(urls, loads, options.interval):
        await asyncio.sleep(WARM_UP_S)
        loads.gaps.clear()
        started, cpu = time.monotonic(), time.process_time()
        while (now := time.monotonic()) < started + options.seconds:
            known = (loads.get(url, now) for url in urls)
            ages = [load.age_s(now) if load else STALE_AFTER_S for load in known]
            figures.ages += ages[: case.n_busy]
            figures.idle_ages += ages[len(ages[: case.n_busy]) :]
            await asyncio.sleep(random.uniform(0.1, 0.3))
        passed, spent = time.monotonic() - started, time.process_time() - cpu
    n_scrapes = sum(map(len, loads.gaps.values()))
    figures.cores.append(spent / passed)
    figures.per_scrape_us.append(spent / n_scrapes * 1e6)
    figures.scrapes_per_s.append(n_scrapes / passed)
    for url in urls[: case.n_busy]:
        figures.gaps += loads.gaps[url]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--servers", type=int, default=100, help="how many are scraped in every case (100)")
    add_fleet_sizes(parser)
    parser.add_argument("--interval", type=float, default=0.05, help="seconds (0.05)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement (6)")
    parser.add_argument("--rounds", type=int, default=2, help="per case (2)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure every case."""
    raise_file_limit()
    cases = {case: Figures() for case in CASES}
    sizes = {n: Figures() for n in options.endpoints}
    for _ in range(options.rounds):
        for case, figures in cases.items():
            uvloop.run(measure(case, options.servers, options, figures))
        for n_servers, figures in sizes.items():
            uvloop.run(measure(_few_busy(n_servers), n_servers, options, figures))
    interval = f"every {options.interval * 1000:.0f} ms"
    return [
        Table(
            name="cases",
            title=f"{options.servers} servers, {interval}",
            headings=("servers", *COST, "interval, ms: median (p99)", "age, ms: mean (p99)"),
            rows=tuple((case.name, *_costs(each), *_times(each)) for case, each in cases.items()),
        ),
        Table(
            name="sizes",
            title=f"{N_BUSY} busy servers, {interval}",
            headings=(
                "servers",
                "busy ones",
                *COST,
                "interval of busy ones, ms: median (p99)",
                "age, ms: mean (p99)",
                "age of idle ones",
            ),
            rows=tuple(
                (n, _few_busy(n).n_busy, *_costs(each), *_times(each), _age_ms(each.idle_ages))
                for n, each in sizes.items()
            ),
        ),
    ]


def _few_busy(n_servers: int) -> Case:
    return Case("few busy", waiting=9, n_busy=min(N_BUSY, n_servers))


def _costs(figures: Figures) -> tuple[Cell, ...]:
    return (
        round(statistics.median(figures.scrapes_per_s)),
        statistics.median(figures.per_scrape_us),
        statistics.median(figures.cores),
    )


def _times(figures: Figures) -> tuple[Cell, ...]:
    gaps = statistics.quantiles(figures.gaps, n=100)
    return (gaps[49] * 1000, gaps[98] * 1000), _age_ms(figures.ages)


def _age_ms(ages: Sequence[float]) -> Cell:
    if not ages:
        return None
    return statistics.mean(ages) * 1000, statistics.quantiles(ages, n=100)[98] * 1000


BENCHMARK = Benchmark(name="scrape", about=__doc__, add_options=add_options, run=run)
