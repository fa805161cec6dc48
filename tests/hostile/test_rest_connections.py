"""Peers that open connections and send little: others are served all the same."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from support.serve import Served, serving

FEW = 16
QUERY = b'{"token_ids":[1]}'
UNFINISHED = (
    b"POST /query HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
)


@asynccontextmanager
async def server(folder: Path, **rest: Any) -> AsyncGenerator[Served]:
    endpoint = {"name": "a", "address": "127.0.0.1:1", "events": "", "replay": ""}
    async with serving({"endpoints": {"static": [endpoint]}, "rest": rest}, folder, ready=False) as served:
        yield served


@contextmanager
def opened(served: Served, n: int, sent: bytes) -> Generator[list[socket.socket]]:
    """Open connections to REST, each with the same first bytes."""
    with ExitStack() as stack:
        made: list[socket.socket] = []
        for _ in range(n):
            made.append(
                stack.enter_context(socket.create_connection(("127.0.0.1", served.ports["rest"]), timeout=30))
            )
            made[-1].sendall(sent)
        yield made


async def asked(served: Served) -> int:
    """Ask by a connection of its own."""
    url = f"http://127.0.0.1:{served.ports['rest']}/query"
    headers = {"Content-Type": "application/json", "Connection": "close"}
    async with served.session.post(url, data=QUERY, headers=headers) as answer:
        return answer.status


async def refusals(served: Served, name: str, reason: str) -> float:
    head = f'kvatlas_{name}_total{{reason="{reason}"}} '
    lines = (await served.metrics()).splitlines()
    return sum(float(line.removeprefix(head)) for line in lines if line.startswith(head))


def received(peer: socket.socket) -> bytes:
    """Return all that the peer received until its connection ended."""
    pieces: list[bytes] = []
    try:
        while piece := peer.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


async def test_posts_without_body_take_nothing_from_others(tmp_path: Path) -> None:
    async with server(tmp_path, maxPendingRequests=4, requestTimeout="60s") as served:
        with opened(served, 12, UNFINISHED):
            statuses = [await asked(served) for _ in range(3)]
            probes = [await served.status(path) for path in ("/healthz", "/readyz")]
            n_refused = await refusals(served, "rest_refusals", "too_many")

    assert statuses == [200] * 3
    assert probes == [200] * 2
    assert n_refused == 0


async def test_connections_that_wait_longest_give_up_their_places(tmp_path: Path) -> None:
    async with server(tmp_path, maxConnections=FEW, requestTimeout="60s") as served:
        with opened(served, 2 * FEW, b"GET /healthz HTTP/1.1\r\n") as peers:
            probes = [await served.status(path) for path in ("/healthz", "/readyz")]
            status = await asked(served)
            first = await asyncio.to_thread(received, peers[0])
            n_refused = await refusals(served, "rest_connections_refused", "too_many_connections")

    assert [*probes, status] == [200] * 3
    assert first == b""
    assert n_refused >= FEW


async def test_headers_and_bodies_that_never_end_are_ended(tmp_path: Path) -> None:
    async with server(tmp_path, requestTimeout="1s") as served:
        with (
            opened(served, 3, b"GET /healthz HTTP/1.1\r\nX: ") as slow_heads,
            opened(served, 3, b"") as mute,
            opened(served, 3, UNFINISHED) as slow_bodies,
        ):
            heads = [await asyncio.to_thread(received, peer) for peer in (*slow_heads, *mute)]
            bodies = [await asyncio.to_thread(received, peer) for peer in slow_bodies]
        n_heads = await refusals(served, "rest_connections_refused", "timeout")
        n_bodies = await refusals(served, "rest_refusals", "timeout")

    assert heads == [b""] * 6
    assert all(answer.startswith(b"HTTP/1.1 408 ") for answer in bodies)
    assert (n_heads, n_bodies) == (6, 3)


async def test_body_that_comes_longest_is_refused_if_all_need_too_much_memory(tmp_path: Path) -> None:
    head = (
        b"POST /query HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 90000\r\n\r\n"
    )
    async with server(tmp_path, maxHeldBytes=200_000, requestTimeout="60s") as served:
        with (
            opened(served, 1, head + b" " * 80_000) as first,
            opened(served, 2, head + b" " * 80_000) as later,
        ):
            answer = await asyncio.to_thread(received, first[0])
            status = await asked(served)
            for peer in later:
                peer.sendall(b" " * 9_998 + b"[]")
            others = [peer.recv(15) for peer in later]
        n_refused = await refusals(served, "rest_refusals", "too_much")

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert status == 200
    assert others == [b"HTTP/1.1 422 Un"] * 2
    assert n_refused == 1


async def test_long_body_is_for_questions_alone(tmp_path: Path) -> None:
    async with server(tmp_path) as served:
        url = f"http://127.0.0.1:{served.ports['rest']}/v1/weights"
        async with served.session.put(url, data=b" " * 300_000) as answer:
            status, message = answer.status, (await answer.json())["error"]["message"]

    assert status == 413
    assert message == "the body is longer than 262144 bytes"
