"""The scraper against real HTTP servers on free ports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvatlas.fleet.scrape.report import FACTS_EVERY_S, EngineFacts
from kvatlas.scorers.core.model import Load
from support.scraping import (
    LOAD,
    SHORT_TIMEOUT_S,
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
async def other() -> AsyncIterator[MetricsServer]:
    async with MetricsServer() as one:
        yield one


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    one = Fleet()
    yield one
    await one.scraper.stop()


async def test_load_and_facts_are_delivered(server: MetricsServer, fleet: Fleet) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 3)

    assert fleet.load("a") == LOAD
    assert fleet.facts == [("a", EngineFacts(n_engines=1, block_size=16, num_gpu_blocks=10))]
    status = fleet.status("a")
    assert (status.url, status.failing, status.last_error, status.n_errors) == (server.url, False, None, {})
    assert status.facts == fleet.facts[0][1]


async def test_recorded_body_is_delivered(server: MetricsServer, fleet: Fleet, golden: Path) -> None:
    server.answer = answering((golden / "metrics_run8.txt").read_bytes())
    fleet.add("a", server.url)
    await until(lambda: fleet.load("a"))

    facts = EngineFacts(
        n_engines=1,
        block_size=32,
        num_gpu_blocks=64,
        rank_tokens=2048,
        process_start_s=1795168561.93,
        offloads=True,
        finds_outside=True,
    )
    assert fleet.facts == [("a", facts)]


async def test_changed_values_and_facts_replace_those_before(server: MetricsServer, fleet: Fleet) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.load("a"))

    fleet.now += FACTS_EVERY_S
    server.answer = answering(metrics(7, blocks=20))
    await until(lambda: len(fleet.facts) == 2)

    assert fleet.load("a") == Load(
        waiting=7, running=2, kv_utilization=0.5, updated_at=fleet.now, gpu_tokens=320
    )
    assert [facts.num_gpu_blocks for _, facts in fleet.facts] == [10, 20]


async def test_load_grows_stale_when_scrapes_fail_and_returns_when_they_work(
    server: MetricsServer, fleet: Fleet
) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.load("a"))
    server.answer = answering(b"busy", status=503)
    await until(lambda: fleet.status("a").failing)

    fleet.now = 102.0
    assert fleet.load("a") == LOAD
    fleet.now = 102.1
    assert fleet.load("a") is None

    server.answer = answering(metrics())
    await until(lambda: fleet.load("a"))
    assert fleet.load("a") == Load(waiting=1, running=2, kv_utilization=0.5, updated_at=102.1, gpu_tokens=160)
    assert len(fleet.facts) == 1


async def test_age_of_a_load_counts_from_the_request(server: MetricsServer, fleet: Fleet) -> None:
    server.answer = server.held
    fleet.add("a", server.url)
    await until(lambda: server.in_flight == 1)
    fleet.now = 101.0
    server.answer = answering(b"busy", status=503)  # later scrapes, which start at 101, deliver nothing
    server.released.set()
    await until(lambda: fleet.load("a"))

    assert fleet.load("a") == LOAD


async def test_server_that_dies_and_returns_is_logged_once_each(
    server: MetricsServer, fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="kvatlas.fleet.scrape.target")
    fleet.add("a", server.url)
    await until(lambda: fleet.load("a"))

    await server.stop()
    await until(lambda: sum(fleet.status("a").n_errors.values()) >= 3)
    dead = fleet.status("a")
    await server.start()
    await until(lambda: not fleet.status("a").failing)
    alive = fleet.status("a")

    assert dead.failing
    assert dead.last_error is not None
    assert str(server.port) in dead.last_error
    assert dead.last_error_at == 100.0
    assert alive.last_error is not None
    failed, works = [record for record in caplog.records if record.name == "kvatlas.fleet.scrape.target"]
    assert (failed.levelname, works.levelname) == ("WARNING", "INFO")
    assert failed.getMessage().startswith(f"scraping endpoint a fails ({server.url}): ")
    assert works.getMessage() == f"scraping endpoint a works again ({server.url})"


@pytest.mark.parametrize(
    ("answer", "reason", "text"),
    [
        pytest.param(
            answering(b"\x00\xff<html>"),
            "missing_series",
            "no series vllm:num_requests_waiting",
            id="garbage",
        ),
        pytest.param(answering(b""), "missing_series", "no series vllm:num_requests_waiting", id="empty"),
        pytest.param(
            answering(b"vllm:num_requests_waiting x\n"),
            "malformed",
            "value of vllm:num_requests_waiting is no number",
            id="malformed",
        ),
        pytest.param(
            answering(b"#" * 100_001), "too_large", "the response has more than 100000 bytes", id="too_large"
        ),
        pytest.param(answering(b"", status=404), "http_status", "HTTP status 404", id="not_found"),
        pytest.param(answering(b"", status=302), "http_status", "HTTP status 302", id="redirect"),
    ],
)
async def test_useless_answer_is_counted_and_remembered(
    server: MetricsServer, fleet: Fleet, answer: Answer, reason: str, text: str
) -> None:
    server.answer = answer
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_errors.get(reason, 0) >= 2)

    status = fleet.status("a")
    assert set(status.n_errors) == {reason}
    assert status.failing
    assert status.last_error is not None
    assert status.last_error.startswith(text)
    assert (fleet.load("a"), fleet.facts) == (None, [])


async def test_body_of_exactly_the_limit_is_read(server: MetricsServer, fleet: Fleet) -> None:
    body = metrics()
    server.answer = answering(body + b"#" * (100_000 - len(body)))
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes or fleet.status("a").failing)

    assert fleet.load("a") == LOAD


@pytest.mark.parametrize("part", ["held", "stalling"])
async def test_slow_answer_times_out(server: MetricsServer, part: str) -> None:
    server.answer = getattr(server, part)
    fleet = Fleet(timeout_s=SHORT_TIMEOUT_S)
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").failing)
    status = fleet.status("a")
    await fleet.scraper.stop()

    assert set(status.n_errors) == {"timeout"}
    assert status.last_error == "no complete response within 0.1 s"


async def test_host_that_cannot_be_looked_up_is_counted_and_remembered(fleet: Fleet) -> None:
    fleet.add("a", f"http://{'a' * 70}/metrics")
    await until(lambda: fleet.status("a").n_errors.get("unreachable", 0) >= 2)

    assert "label too long" in (fleet.status("a").last_error or "")


async def test_endpoint_is_never_scraped_twice_at_once(
    server: MetricsServer, other: MetricsServer, fleet: Fleet
) -> None:
    server.answer = server.held
    fleet.add("slow", server.url)
    await until(lambda: server.in_flight == 1)

    fleet.add("quick", other.url)
    await until(lambda: fleet.status("quick").n_scrapes >= 10)
    assert (server.n_requests, server.in_flight) == (1, 1)

    server.released.set()
    await until(lambda: fleet.status("slow").n_scrapes >= 3)
    assert server.most_in_flight == 1


async def test_endpoint_removed_in_flight_delivers_nothing(
    server: MetricsServer, other: MetricsServer, fleet: Fleet
) -> None:
    server.answer = server.held
    fleet.add("gone", server.url)
    await until(lambda: server.in_flight == 1)

    fleet.scraper.remove("gone")
    server.released.set()
    fleet.add("stays", other.url)
    await until(lambda: fleet.status("stays").n_scrapes >= 5)

    assert fleet.load("gone") is None
    assert [name for name, _ in fleet.facts] == ["stays"]
    with pytest.raises(KeyError):
        fleet.status("gone")


async def test_removed_endpoint_has_no_load_and_starts_clean_when_added_again(
    server: MetricsServer, fleet: Fleet
) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.load("a"))

    fleet.scraper.remove("a")
    assert fleet.load("a") is None

    fleet.add("a", server.url)
    assert fleet.status("a").n_scrapes == 0
    await until(lambda: fleet.load("a"))
    assert len(fleet.facts) == 2


async def test_stopping_ends_scrapes_in_flight_and_keeps_the_loads(
    server: MetricsServer, other: MetricsServer, fleet: Fleet
) -> None:
    fleet.add("quick", other.url)
    await until(lambda: fleet.load("quick"))
    server.answer = server.held
    fleet.add("slow", server.url)
    await until(lambda: server.in_flight == 1)

    await asyncio.wait_for(fleet.scraper.stop(), timeout=TIMEOUT_S / 2)

    assert fleet.load("quick") == LOAD
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("scrape ")]


async def test_misuse_is_refused(server: MetricsServer, fleet: Fleet) -> None:
    fleet.add("a", server.url)

    with pytest.raises(ValueError, match="'a' is scraped already"):
        fleet.add("a", server.url)
    with pytest.raises(KeyError):
        fleet.scraper.remove("b")
    fleet.scraper.picked("b")


async def test_failing_listener_reaches_the_loops_exception_handler_and_scraping_continues(
    server: MetricsServer, fleet: Fleet
) -> None:
    contexts: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.append(context))
    fleet.listener_fails = True

    fleet.add("a", server.url)
    await until(lambda: contexts)
    await until(lambda: fleet.status("a").n_scrapes >= 3)

    assert str(contexts[0]["exception"]) == "a has 10 blocks"


# -- connections -------------------------------------------------------------------------------------------------------


async def test_one_connection_serves_every_scrape_of_an_endpoint(server: MetricsServer, fleet: Fleet) -> None:
    fleet.add("a", server.url)
    await until(lambda: fleet.status("a").n_scrapes >= 10)

    assert len(server.clients) == 1


async def test_connection_that_the_server_closes_between_scrapes_is_no_failure(fleet: Fleet) -> None:
    """Close the connection after each response without notice, as uvicorn does after five idle seconds."""
    n_connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_connections
        n_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(metrics()), metrics()))
            if n_connections % 2:
                await reader.readuntil(b"\r\n\r\n")  # closed during a request, otherwise between two
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    fleet.add("a", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics")
    await until(lambda: fleet.status("a").n_scrapes >= 6)
    status = fleet.status("a")
    fleet.scraper.remove("a")
    listening.close()
    await listening.wait_closed()

    assert (status.n_errors, status.failing) == ({}, False)
    assert n_connections >= 6


async def test_server_that_never_answers_a_second_request_is_counted_after_one_retry(fleet: Fleet) -> None:
    n_requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_requests
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            n_requests += 1
            if n_requests == 1:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(metrics()), metrics()))
                await reader.readuntil(b"\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    fleet.add("a", f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/metrics")
    await until(lambda: fleet.status("a").failing)
    status = fleet.status("a")
    fleet.scraper.remove("a")
    listening.close()
    await listening.wait_closed()

    assert (status.n_scrapes, status.n_errors) == (1, {"unreachable": 1})
    assert n_requests == 2
