"""Limits of the connections of an HTTP listener, over real sockets in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from kvatlas.api.acceptor import ConnectionLimits
from kvatlas.api.rest.listener import HttpListener
from kvatlas.api.tls.certificates import Certificates
from kvatlas.api.tls.http import server_context
from support.certificates import certificate_files
from support.waiting import until

SHORT_S = 0.3
LONG_S = 60.0
GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"


class Listening:
    """A running listener: its port, and why connections were refused."""

    def __init__(self) -> None:
        self.port = 0
        self.refused: list[str] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()


@asynccontextmanager
async def listening(limits: ConnectionLimits, tls: Path | None = None) -> AsyncGenerator[Listening]:
    async def small(_request: Request) -> Response:
        return Response(b"small")

    async def large(_request: Request) -> Response:
        return Response(b" " * (32 * 2**20))

    async def held(_request: Request) -> Response:
        found.begun.set()
        await found.go_on.wait()
        return Response(b"at last")

    found = Listening()
    context = server_context(Certificates(certificate_files(tls).config)) if tls is not None else None
    app = Starlette(routes=[Route("/small", small), Route("/large", large), Route("/held", held)])
    listener = HttpListener("server.rest", app, context, limits=limits, on_refused=found.refused.append)
    found.port = await listener.start("127.0.0.1", 0)
    try:
        yield found
    finally:
        await listener.stop()


def peer(found: Listening, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", found.port), timeout=30)
    made.sendall(sent)
    return made


def rest_of(made: socket.socket) -> int:
    """Return how many bytes come until the connection ends."""
    n_bytes = 0
    with made:
        try:
            while piece := made.recv(2**20):
                n_bytes += len(piece)
        except ConnectionResetError:
            pass
    return n_bytes


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00"], ids=["mute", "part_of_a_hello"])
async def test_handshake_that_never_ends_is_ended(tmp_path: Path, sent: bytes) -> None:
    async with listening(ConnectionLimits(timeout_s=SHORT_S), tmp_path) as found:
        assert await asyncio.to_thread(rest_of, peer(found, sent)) == 0

    assert found.refused == ["timeout"]


async def test_handshake_gives_up_its_place_to_a_later_connection(tmp_path: Path) -> None:
    async with listening(ConnectionLimits(max_connections=1, timeout_s=LONG_S), tmp_path) as found:
        first = peer(found)
        with peer(found):
            assert await asyncio.to_thread(rest_of, first) == 0

    assert found.refused == ["too_many_connections"]


async def test_response_that_is_not_taken_is_ended() -> None:
    async with listening(ConnectionLimits(timeout_s=SHORT_S)) as found:
        slow = peer(found, GET % b"large")
        await until(lambda: found.refused, what="the end of the response")
        n_bytes = await asyncio.to_thread(rest_of, slow)

    assert found.refused == ["timeout"]
    assert n_bytes < 32 * 2**20


async def test_connection_in_use_keeps_its_place_and_the_new_one_is_refused() -> None:
    async with listening(ConnectionLimits(max_connections=1, timeout_s=LONG_S)) as found:
        with peer(found, GET % b"held") as busy:
            await found.begun.wait()
            n_bytes = await asyncio.to_thread(rest_of, peer(found, GET % b"small"))
            found.go_on.set()
            answer = b""
            while not answer.endswith(b"at last"):
                answer += await asyncio.to_thread(busy.recv, 1000)

    assert n_bytes == 0
    assert found.refused == ["too_many_connections"]


async def test_second_request_of_a_connection_has_its_own_time() -> None:
    async with listening(ConnectionLimits(timeout_s=SHORT_S)) as found:
        with peer(found, GET % b"small") as made:
            first = b""
            while not first.endswith(b"small"):
                first += await asyncio.to_thread(made.recv, 1000)
            made.sendall(GET[:10])
            n_bytes = await asyncio.to_thread(rest_of, made)

    assert b"200 OK" in first
    assert n_bytes == 0
    assert found.refused == ["timeout"]


async def test_request_that_came_as_a_whole_is_answered_without_the_application() -> None:
    asked: list[tuple[str, bytes]] = []

    def at_once(scope: Scope, body: bytes | bytearray) -> bytes | None:
        asked.append((scope["path"], bytes(body)))
        if scope["path"] == "/broken":
            raise RuntimeError("a fault")
        return b"[1]" if scope["path"] == "/once" else None

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"app")(scope, receive, send)

    listener = HttpListener("server.rest", app, at_once=at_once)
    port = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for sent, answer in [
        (b"POST /once HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", b"[1]"),
        (b"POST /once HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n", b"[1]"),
        (b"POST /other HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi", b"app"),
        (b"POST /broken HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"app"),
        (b"GET /once HTTP/1.0\r\n\r\n", b"app"),
    ]:
        writer.write(sent)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK\r\n")
        assert await reader.readexactly(3) == answer
    writer.close()
    await listener.stop()
    assert asked == [("/once", b"hi"), ("/once", b"hi"), ("/other", b"hi"), ("/broken", b"")]


async def test_request_before_bytes_that_are_no_http_is_refused_and_not_served() -> None:
    served: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(scope["path"])
        await Response(b"app")(scope, receive, send)

    refused: list[str] = []
    listener = HttpListener("server.rest", app, on_refused=refused.append)
    port = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /weights HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi, and more than was announced\r\n\r\n"
    )
    answer = await reader.read()
    writer.close()
    await listener.stop()

    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert (served, refused) == ([], ["no_http"])
