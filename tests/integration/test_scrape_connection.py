"""One kept connection to servers that respond in every way HTTP allows, and in some it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kvatlas.fleet.scrape.connection import Destination, MetricsConnection, connect
from kvatlas.fleet.scrape.errors import ScrapeError
from kvatlas.sim.held_port import HeldPort
from support.waiting import until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

MAX_BODY_BYTES = 1000
OK = b"HTTP/1.1 200 OK\r\n"


class Outcomes:
    """The outcomes that a connection reported; implements `connection.ResponseHandler`."""

    def __init__(self) -> None:
        self.responses: list[tuple[int, bytes]] = []
        self.failures: list[tuple[str, str, bool]] = []

    def responded(self, status: int, body: bytes) -> None:
        self.responses.append((status, body))

    def failed(self, error: ScrapeError, *, untouched: bool) -> None:
        self.failures.append((error.reason, str(error), untouched))

    @property
    def count(self) -> int:
        return len(self.responses) + len(self.failures)


@asynccontextmanager
async def asking(serve: Serve) -> AsyncGenerator[tuple[MetricsConnection, Outcomes, bytes]]:
    """Connect to a server that runs `serve`; yield the connection, its outcomes and the request to send."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    destination = Destination.of(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics")
    outcomes = Outcomes()
    connection = MetricsConnection(outcomes, max_body_bytes=MAX_BODY_BYTES)
    await connect(destination, connection, None)
    try:
        yield connection, outcomes, destination.request()
    finally:
        connection.abort()
        server.close()
        await server.wait_closed()


def answering(*parts: bytes, close: bool = False) -> Serve:
    """Respond to each request with `parts`, each sent separately."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
                if close:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return serve


@pytest.mark.parametrize("split", ["whole", "byte_by_byte"])
@pytest.mark.parametrize(
    ("raw", "close", "answer"),
    [
        pytest.param(OK + b"Content-Length: 4\r\n\r\nbody", False, (200, b"body"), id="length"),
        pytest.param(OK + b"content-LENGTH: 0\r\n\r\n", False, (200, b""), id="empty"),
        pytest.param(
            OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nbod\r\n1\r\ny\r\n0\r\n\r\n",
            False,
            (200, b"body"),
            id="chunked",
        ),
        pytest.param(
            OK + b"Connection: close\r\nContent-Length: 4\r\n\r\nbody",
            False,
            (200, b"body"),
            id="connection_close",
        ),
        pytest.param(OK + b"\r\nbody", True, (200, b"body"), id="until_the_end"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\nbody", True, (200, b"body"), id="http_1_0"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 4\r\n\r\nbody",
            False,
            (200, b"body"),
            id="continue",
        ),
        pytest.param(
            b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy", False, (503, b"busy"), id="status"
        ),
        pytest.param(
            OK + b"Content-Length: 1000\r\n\r\n" + b"x" * 1000, False, (200, b"x" * 1000), id="largest"
        ),
    ],
)
async def test_response_is_reported_once(
    raw: bytes, close: bool, answer: tuple[int, bytes], split: str
) -> None:
    parts = [raw] if split == "whole" else [raw[i : i + 1] for i in range(len(raw))]
    async with asking(answering(*parts, close=close)) as (connection, outcomes, request):
        connection.send(request)
        await until(lambda: outcomes.count)

        assert (outcomes.responses, outcomes.failures) == ([answer], [])


@pytest.mark.parametrize(
    ("raw", "close", "reason", "text"),
    [
        pytest.param(b"SSH-2.0-x\r\n", False, "malformed", "the response is not HTTP", id="not_http"),
        pytest.param(
            OK + b"Content-Length: x\r\n\r\n", False, "malformed", "the response is not HTTP", id="no_number"
        ),
        pytest.param(
            b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx", False, "malformed", "the response is not HTTP",
            id="upgrade",
        ),
        pytest.param(
            OK + b"Content-Length: 1001\r\n\r\n" + b"x" * 1001, False, "too_large", "more than 1000 bytes", id="too_large"
        ),
        pytest.param(
            OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\n" + b"x", False,
            "too_large", "more than 1000 bytes", id="too_large_in_chunks",
        ),
        pytest.param(OK + b"\r\n" + b"x" * 1001, False, "too_large", "more than 1000 bytes", id="too_large_without_end"),
        pytest.param(
            OK + b"Content-Length: 9\r\n\r\nbody", True, "unreachable", "closed before the whole response", id="truncated"
        ),
        pytest.param(OK + b"X: y", True, "unreachable", "closed before the whole response", id="truncated_head"),
        pytest.param(b"", True, "unreachable", "closed before the whole response", id="no_answer"),
    ],
)  # fmt: skip
async def test_failure_is_reported_once_and_ends_the_connection(
    raw: bytes, close: bool, reason: str, text: str
) -> None:
    async with asking(answering(raw, close=close)) as (connection, outcomes, request):
        connection.send(request)
        await until(lambda: outcomes.count)
        await until(lambda: not connection.is_open)

        ((found_reason, found_text, untouched),) = outcomes.failures
        assert (found_reason, untouched, outcomes.responses) == (reason, False, [])
        assert text in found_text


async def test_connection_is_kept_for_the_next_request() -> None:
    async with asking(answering(OK + b"Content-Length: 1\r\n\r\nx")) as (connection, outcomes, request):
        for count in range(1, 4):
            connection.send(request)
            await until(lambda count=count: outcomes.count == count)  # type: ignore[misc]  # a default of a lambda has no type
        assert outcomes.responses == [(200, b"x")] * 3
        assert connection.is_open


async def test_kept_connection_is_reported_as_untouched_when_it_ends_before_a_response() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: 1\r\n\r\nx")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with asking(serve) as (connection, outcomes, request):
        connection.send(request)
        await until(lambda: outcomes.count == 1)
        connection.send(request)
        await until(lambda: outcomes.count == 2)

        assert [(reason, untouched) for reason, _, untouched in outcomes.failures] == [("unreachable", True)]


@pytest.mark.parametrize("together", [True, False])
async def test_unrequested_response_ends_the_connection(together: bool) -> None:
    answer = OK + b"Content-Length: 1\r\n\r\nx"
    parts = [answer + answer] if together else [answer, answer]
    async with asking(answering(*parts)) as (connection, outcomes, request):
        connection.send(request)
        await until(lambda: outcomes.count)
        await until(lambda: not connection.is_open)

        assert (outcomes.responses, outcomes.failures) == ([(200, b"x")], [])


async def test_aborted_connection_reports_nothing() -> None:
    waiting = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        waiting.set()
        await reader.read()
        writer.close()

    async with asking(serve) as (connection, outcomes, request):
        connection.send(request)
        await waiting.wait()
        connection.abort()
        await until(lambda: not connection.is_open)

        assert outcomes.count == 0


async def test_port_on_which_nobody_listens_cannot_be_reached() -> None:
    closed = HeldPort()
    url = f"http://127.0.0.1:{closed.number}"

    with pytest.raises(ScrapeError, match=f"cannot connect to 127.0.0.1:{closed.number}: ") as raised:
        await connect(Destination.of(url), MetricsConnection(Outcomes()), None)

    assert raised.value.reason == "unreachable"
