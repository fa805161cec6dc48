"""How often endpoints are scraped, and for which series."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, make_asgi_app  # pyright: ignore[reportUnknownVariableType]
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvatlas.api.rest.listener import HttpListener
from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses
from kvatlas.configs.engines import ENGINES, EngineSeries, Selector
from kvatlas.fleet.scrape.report import FACTS_EVERY_S, EngineFacts
from kvatlas.fleet.scrape.schedule import Intervals
from kvatlas.fleet.scrape.target import KnownLoad, ScrapeSettings
from kvatlas.scorers.core.model import Load
from support.fleets import make_fleet
from support.scraping import (
    IDLE_S,
    INTERVAL_S,
    LOAD,
    TIMEOUT_S,
    Answer,
    Fleet,
    MetricsServer,
    answering,
    metrics,
)
from support.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[MetricsServer]:
    async with MetricsServer() as one:
        yield one


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    one = Fleet()
    yield one
    await one.scraper.stop()


# -- busy and idle -----------------------------------------------------------------------------------------------------


def idle() -> Answer:
    return answering(metrics(0).replace(b"running 2", b"running 0"))


async def test_idle_endpoint_is_scraped_less_often_until_it_shows_work(
    server: MetricsServer, fleet: Fleet
) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 5)
    assert fleet.status("a").interval_s == INTERVAL_S

    server.answer = idle()
    await until(lambda: fleet.status("a").interval_s == IDLE_S)

    server.answer = answering(metrics())
    await until(lambda: fleet.status("a").interval_s == INTERVAL_S)


async def test_failing_endpoint_is_tried_less_often(server: MetricsServer, fleet: Fleet) -> None:
    server.answer = answering(b"", status=503)
    fleet.add("a", server.url)

    await until(lambda: fleet.status("a").interval_s == IDLE_S)

    assert fleet.status("a").failing


async def test_picked_endpoint_is_scraped_at_once_and_often_for_a_while(server: MetricsServer) -> None:
    fleet = Fleet(idle_s=3600.0)
    server.answer = idle()
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").interval_s > 1)
    before = fleet.status("a").n_scrapes

    fleet.scraper.picked("a")
    assert fleet.status("a").interval_s == INTERVAL_S
    await until(lambda: fleet.status("a").n_scrapes >= before + 5)
    await fleet.scraper.stop()


async def test_pick_during_a_scrape_starts_no_second_one(server: MetricsServer, fleet: Fleet) -> None:
    server.answer = server.held
    fleet.add("a", server.url)
    await until(lambda: server.in_flight == 1)

    for _ in range(10):
        fleet.scraper.picked("a")
    server.released.set()
    await until(lambda: fleet.status("a").n_scrapes >= 3)

    assert server.most_in_flight == 1


class Known:
    """Accounts that name these numbers of requests, again and again. Implements `Accounts`."""

    def __init__(self, requests: Sequence[int]) -> None:
        self._requests = itertools.cycle(requests)

    def max_age_s(self) -> float:
        return math.inf

    def of(self, endpoint: str) -> KnownLoad | None:
        assert endpoint == "a"
        return KnownLoad(next(self._requests), math.inf)


async def test_endpoint_whose_requests_are_all_known_is_scraped_like_an_idle_one(
    server: MetricsServer, fleet: Fleet
) -> None:
    server.answer = answering(metrics(1))
    fleet.scraper.use_accounts(Known((3,)))
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").interval_s == IDLE_S)

    server.answer = answering(metrics(2))  # somebody else's
    await until(lambda: fleet.status("a").interval_s == INTERVAL_S)

    server.answer = answering(metrics(0))
    await until(lambda: fleet.status("a").interval_s == IDLE_S)


async def test_request_that_ends_or_begins_during_a_scrape_is_known(
    server: MetricsServer, fleet: Fleet
) -> None:
    server.answer = answering(metrics(0))
    fleet.scraper.use_accounts(Known((2, 1)))
    fleet.add("a", server.url)

    await until(lambda: fleet.status("a").interval_s == IDLE_S)


@pytest.mark.parametrize(
    ("is_read", "is_seen", "is_slow"),
    [
        pytest.param(False, True, True, id="decisions_read_no_load"),
        pytest.param(True, True, False, id="decisions_read_the_load"),
        pytest.param(False, False, False, id="an_end_is_not_seen"),
    ],
)
async def test_fleet_knows_the_requests_that_it_booked(
    server: MetricsServer, is_read: bool, is_seen: bool, is_slow: bool
) -> None:
    server.answer = answering(metrics(0))
    settings = ScrapeSettings(Intervals(INTERVAL_S, IDLE_S), TIMEOUT_S)
    async with make_fleet(scraping=settings) as fleet:
        fleet.known_loads.max_age_s = lambda: 0.0 if is_read else math.inf
        bookings = [fleet.in_flight.book("a", tokens=0, now=time.monotonic()) for _ in range(2)]
        if not is_seen:
            bookings[0].unseen()
        fleet.add("a", EndpointAddresses(serving=HostPort("10.0.0.1", 1), metrics=server.url, ranks=()), {})

        def n_scrapes() -> int:
            status = fleet.scrape_status("a")
            return status.n_scrapes if status is not None else 0

        await until(lambda: n_scrapes() >= 5)
        status = fleet.scrape_status("a")
        assert status is not None
        assert status.interval_s == (IDLE_S if is_slow else INTERVAL_S)


async def test_shorter_interval_applies_at_once(server: MetricsServer) -> None:
    fleet = Fleet(idle_s=3600.0)
    fleet.scraper.configure(ScrapeSettings(Intervals(3600.0, 3600.0), TIMEOUT_S))
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes == 1)

    fleet.scraper.configure(ScrapeSettings(Intervals(INTERVAL_S, IDLE_S), TIMEOUT_S))
    await until(lambda: fleet.status("a").n_scrapes >= 3)
    await fleet.scraper.stop()


# -- asking for single series -------------------------------------------------------------------------------------------


async def test_only_the_needed_series_are_requested_when_the_server_supports_it(fleet: Fleet) -> None:
    """Use the server that vLLM mounts: the client library's own application."""
    registry = CollectorRegistry()
    for name, value in (("waiting", 1), ("running", 2)):
        Gauge(f"vllm:num_requests_{name}", "?", registry=registry).set(value)
    Gauge("vllm:kv_cache_usage_perc", "?", registry=registry).set(0.5)
    Gauge("vllm:cache_config_info", "?", ["block_size", "num_gpu_blocks"], registry=registry).labels(
        16, 10
    ).set(1)
    app: ASGIApp = make_asgi_app(registry)  # pyright: ignore[reportUnknownVariableType]
    bodies: list[int] = []

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.body":
                bodies.append(len(message["body"]))
            await send(message)

        await app(scope, receive, count)

    for number in range(1000):
        Gauge(f"other_{number}", "?", registry=registry)
    listener = HttpListener("server.metrics", measured)
    port = await listener.start("127.0.0.1", 0)
    fleet.add("a", f"http://127.0.0.1:{port}/metrics")
    await until(lambda: fleet.status("a").n_scrapes >= 5)
    status, load = fleet.status("a"), fleet.load("a")
    fleet.scraper.remove("a")
    await listener.stop()

    assert load == LOAD
    assert fleet.facts == [("a", EngineFacts(n_engines=1, block_size=16, num_gpu_blocks=10))]
    assert status.n_errors == {}
    assert bodies[0] > 40_000
    assert max(bodies[1:]) < 1000


async def test_all_series_are_read_when_the_server_ignores_names(server: MetricsServer, fleet: Fleet) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 3)

    assert server.queries[0] == ""
    assert "name[]=vllm:num_requests_waiting" in server.queries[1]
    assert fleet.status("a").n_errors == {}


@pytest.mark.parametrize("refusal", [answering(b""), answering(b"", status=400)])
async def test_all_series_are_requested_again_when_the_server_finds_none_by_name(
    server: MetricsServer, fleet: Fleet, refusal: Answer
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await (refusal if request.query_string else answering(metrics()))(request)

    server.answer = answer
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 5)

    assert [bool(query) for query in server.queries[:5]] == [False, True, False, False, False]
    assert sum(fleet.status("a").n_errors.values()) == 1


async def test_new_process_is_scraped_by_name_when_the_former_one_could_not_be(
    server: MetricsServer, fleet: Fleet
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return await answering(b"" if request.query_string else metrics())(request)

    server.answer = answer
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 3)
    n_before = len(server.queries)

    fleet.now += FACTS_EVERY_S
    server.answer = answering(metrics(blocks=20))
    await until(lambda: any("name[]=" in query for query in server.queries[n_before:]))


# -- names that change ---------------------------------------------------------------------------------------------------

MINE = {"mine": EngineSeries(waiting=(Selector("my_queue"),), running=(Selector("my_running"),))}


async def test_endpoint_is_read_by_other_names_from_the_next_scrape_on(
    server: MetricsServer, fleet: Fleet
) -> None:
    server.answer = answering(metrics() + b"my_queue 7\nmy_running 8\n")
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 3)
    assert fleet.status("a").engine == "vllm"

    fleet.scraper.rename("a", MINE)
    assert fleet.status("a").engine is None
    await until(lambda: fleet.status("a").engine == "mine")

    assert fleet.load("a") == Load(7, 8, 0.0, updated_at=100.0)
    assert fleet.status("a").n_errors == {}
    assert "name[]=my_queue&name[]=my_running" in (await _newest_query(server))


async def test_scrape_in_progress_keeps_its_names_when_they_change(
    server: MetricsServer, fleet: Fleet
) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 3)
    server.answer = server.held
    await until(lambda: server.in_flight == 1)

    fleet.scraper.rename("a", MINE)
    server.answer = answering(b"my_queue 7\nmy_running 8\n")
    server.released.set()
    await until(lambda: fleet.status("a").engine == "mine")

    assert fleet.status("a").n_errors == {}


async def test_endpoint_that_waits_long_is_read_by_other_names_soon(server: MetricsServer) -> None:
    fleet = Fleet()
    fleet.scraper.configure(ScrapeSettings(Intervals(3600.0, 3600.0), TIMEOUT_S))
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes == 1)

    server.answer = answering(b"my_queue 0\nmy_running 0\n")
    fleet.scraper.rename("a", MINE)
    await until(lambda: fleet.status("a").engine == "mine")
    await fleet.scraper.stop()


async def test_same_names_change_nothing(server: MetricsServer, fleet: Fleet) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 2)

    fleet.scraper.rename("a", dict(ENGINES))

    assert fleet.status("a").engine == "vllm"


async def _newest_query(server: MetricsServer) -> str:
    n_before = len(server.queries)
    await until(lambda: len(server.queries) > n_before)
    return server.queries[-1]
