"""Commands that ask a process, at an address where something else answers: without end, byte by byte, or not in full."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli import client
from kvatlas.app.cli.main import app as command_line

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def answering(pieces: Iterator[bytes], *, pause_s: float = 0.0) -> AsyncGenerator[str]:
    """Answer every connection with the pieces, one after the other; yield the URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def run(*arguments: str) -> tuple[int, str]:
    """Run a command; return exit status and stderr."""
    runner = CliRunner(env={"COLUMNS": "120"})
    result = await asyncio.to_thread(runner.invoke, command_line, arguments)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stderr


@pytest.mark.parametrize(
    ("command", "begin", "again"),
    [
        pytest.param("doctor", HEAD, b"a", id="header"),
        pytest.param("doctor", b"", b"HTTP/1.1 100 Continue\r\n\r\n", id="interim_responses"),
        pytest.param("doctor", HEAD + b"Content-Length: 1000000\r\n\r\n", b"a", id="length"),
        pytest.param("doctor", HEAD + b"\r\n", b"a", id="until_the_connection_ends"),
        pytest.param("doctor", CHUNKED, b"1\r\na\r\n", id="chunks"),
        pytest.param("doctor", CHUNKED, b"1", id="size_of_a_chunk"),
        pytest.param("top", HEAD + b"\r\n", b": nothing\n", id="events"),
        pytest.param("top", CHUNKED, b"1\r\n\n\r\n", id="events_in_chunks"),
    ],
)
async def test_command_ends_when_a_response_comes_byte_by_byte(
    command: str, begin: bytes, again: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TOTAL_S", 0.2)
    async with answering(chain([begin], repeat(again)), pause_s=0.005) as url:
        status, stderr = await run(command, "--url", url)
    assert (status, "no complete response within 0.2 s" in stderr) == (2, True), stderr


@pytest.mark.parametrize(
    ("command", "begin", "again"),
    [
        pytest.param("doctor", HEAD + b"Content-Length: 1000000000000\r\n\r\n", b" " * 1000, id="length"),
        pytest.param("doctor", HEAD + b"\r\n", b" " * 1000, id="until_the_connection_ends"),
        pytest.param("doctor", CHUNKED, b"3e8\r\n" + b" " * 1000 + b"\r\n", id="chunks"),
        pytest.param("top", HEAD + b"\r\n", b" " * 1000, id="event"),
    ],
)
async def test_response_is_refused_when_it_has_no_end(
    command: str, begin: bytes, again: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 100_000)
    async with answering(chain([begin], repeat(again))) as url:
        status, stderr = await run(command, "--url", url)
    assert (status, "the response is longer than 100000 bytes" in stderr) == (2, True), stderr


async def test_response_is_refused_when_it_ends_early() -> None:
    async with answering(iter([HEAD + b"Content-Length: 10\r\n\r\n{}"])) as url:
        status, stderr = await run("doctor", "--url", url)
    assert (status, "IncompleteRead(2 bytes read, 8 more expected)" in stderr) == (2, True), stderr
