"""Questions that the connection answers itself: what comes is what the application would have sent."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import pytest
import pytest_asyncio

from kvatlas.api.client import MSGPACK, query_body, query_by_hash_body
from support.fleets import make_endpoint
from support.local_process import LocalProcess, local_process
from support.serve import ANY_PORTS

JSON = "application/json"
TOKEN = "secret-of-this-test"  # noqa: S105 - used by this test alone
AUTHORIZATION = f"Authorization: Bearer {TOKEN}\r\n"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Answered:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[LocalProcess]:
    file = tmp_path_factory.mktemp("at-once") / "token"
    file.write_text(TOKEN)
    auth = {"bearerTokenFile": str(file), "protectReads": True}
    async with local_process(
        make_endpoint("a"), server=ANY_PORTS | {"auth": auth}, rest={"maxBodyBytes": 100_000}
    ) as found:
        yield found


def request(
    path: str, content_type: str, body: bytes, *, more: str = AUTHORIZATION, host: str = "127.0.0.1"
) -> tuple[bytes, bytes]:
    """Return headers and body."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode(), body


async def read(reader: asyncio.StreamReader) -> Answered:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().splitlines()
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    headers.pop("date", None)
    return Answered(int(first.split()[1]), headers, body)


async def ask(process: LocalProcess, *messages: bytes) -> list[Answered]:
    """Send messages in one piece; return as many responses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", process.app.ports["rest"])
    writer.write(b"".join(messages))
    found = [await read(reader) for _ in messages]
    writer.close()
    return found


async def ask_in_pieces(process: LocalProcess, head: bytes, body: bytes) -> Answered:
    """Send the body once the application wants it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", process.app.ports["rest"])
    writer.write(head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n"))
    found = await read(reader)
    if found.status == 100:
        writer.write(body)
        found = await read(reader)
    writer.close()
    return found


def packed(**fields: str) -> bytes:
    return query_body(array("I", range(64)), **fields)


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        pytest.param("/query", JSON, b'{"token_ids": [1, 2]}', id="json"),
        pytest.param(
            "/query", JSON + "; charset=utf-8", b'{"token_ids":[1],"model":"m"}', id="json_with_charset"
        ),
        pytest.param("/query", JSON, json.dumps({"token_ids": [*range(9000)]}).encode(), id="long"),
        pytest.param("/query", MSGPACK, packed(model="m"), id="msgpack"),
        pytest.param("/query", MSGPACK, packed(tenant_id="nobody"), id="other_tenant"),
        pytest.param("/query_by_hash", MSGPACK, query_by_hash_body([1, 2], block_size=16), id="hashes"),
        pytest.param("/query_by_hash", JSON, b'{"block_hashes":[1,-1]}', id="local_hashes"),
        pytest.param("/query_by_hash", JSON, b'{"block_hashes":[1],"seq_hashes":[1]}', id="both_hashes"),
        pytest.param("/v1/score", JSON, b'{"model":"m","token_ids":[1,2]}', id="score"),
        pytest.param("/query", JSON, b'{"token_ids":[1,-2]}', id="invalid"),
        pytest.param("/query", JSON, b"", id="empty"),
        pytest.param("/query", JSON, b"[", id="no_json"),
        pytest.param("/query", MSGPACK, b"\xc1", id="no_msgpack"),
        pytest.param("/query", "text/plain", b'{"token_ids":[1]}', id="text"),
        pytest.param("/query", MSGPACK, query_body(bytes(30_000)), id="too_long"),
        pytest.param("/query/", JSON, b'{"token_ids":[1]}', id="nearly_a_question"),
        pytest.param("/nothing", JSON, b"{}", id="nothing"),
    ],
)
async def test_response_is_that_of_the_application(
    process: LocalProcess, path: str, content_type: str, body: bytes
) -> None:
    head, _ = request(path, content_type, body)
    (at_once,) = await ask(process, head + body)
    assert at_once == await ask_in_pieces(process, head, body)


@pytest.mark.parametrize(
    ("changed", "status", "reason"),
    [
        pytest.param({"more": ""}, 401, "unauthorized", id="no_token"),
        pytest.param(
            {"more": AUTHORIZATION.replace("secret", "guess")}, 401, "unauthorized", id="wrong_token"
        ),
    ],
)
async def test_refusal_is_counted_once(
    process: LocalProcess, changed: dict[str, str], status: int, reason: str
) -> None:
    counted = f'kvatlas_rest_refusals_total{{reason="{reason}"}}'

    async def count() -> float:
        (metrics,) = await ask(
            process, f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n{AUTHORIZATION}\r\n".encode()
        )
        lines = [line for line in metrics.body.decode().splitlines() if line.startswith(counted)]
        return float(lines[0].split()[1]) if lines else 0.0

    before = await count()
    (refused,) = await ask(process, b"".join(request("/query", JSON, b'{"token_ids":[1]}', **changed)))
    assert (refused.status, await count() - before) == (status, 1)


async def test_page_of_another_site_is_refused() -> None:
    async with local_process(make_endpoint("a")) as open_process:
        ids = b'{"token_ids":[1]}'
        good = b"".join(request("/query", JSON, ids, more=""))
        foreign_host = b"".join(request("/query", JSON, ids, more="", host="evil.example"))
        foreign_page = b"".join(request("/query", JSON, ids, more="Origin: http://evil.example\r\n"))
        statuses = [each.status for each in await ask(open_process, good, foreign_host, foreign_page, good)]
        assert statuses == [200, 403, 403, 200]


async def test_requests_of_one_piece_are_answered_in_their_order(process: LocalProcess) -> None:
    query = b"".join(request("/query", JSON, b'{"token_ids":[1]}'))
    wrong = b"".join(request("/query", JSON, b'{"token_ids":"x"}'))
    probe = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    statuses = [each.status for each in await ask(process, query, probe, query, wrong, query, query)]
    assert statuses == [200, 200, 200, 422, 200, 200]


async def test_connection_is_closed_if_the_caller_wants_that(process: LocalProcess) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", process.app.ports["rest"])
    writer.write(
        b"".join(request("/query", JSON, b'{"token_ids":[1]}', more=AUTHORIZATION + "Connection: close\r\n"))
    )
    found = await read(reader)
    assert (found.status, found.headers["connection"], await reader.read()) == (200, "close", b"")
    writer.close()
