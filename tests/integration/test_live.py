"""`/v1/live` of a running process: frames, seats, the token, and a shutdown that does not wait for viewers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from support.gateway import FLEET, Gateway, gateway
from support.leaks import no_new_tasks
from support.serve import ANY_PORTS, serving
from support.waiting import PATIENCE_S

TOKEN = "a-token-of-this-test"  # noqa: S105 - used by this test alone


@asynccontextmanager
async def viewer(gate: Gateway) -> AsyncGenerator[aiohttp.ClientResponse]:
    async with gate.served.session.get(f"{gate.url}/v1/live") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer


async def next_frame(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the next event of a stream."""
    event = await answer.content.readuntil(b"\n\n")
    number, data = event.decode().rstrip().split("\n")
    assert int(number.removeprefix("id: ")) > 0
    frame: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return frame


async def test_frames_show_the_fleet_and_each_decision(tmp_path: Path) -> None:
    async with (
        gateway(tmp_path, rest={"maxLiveViewers": 2}) as gate,
        viewer(gate) as one,
        viewer(gate) as two,
    ):
        first = await next_frame(one)
        assert first == await next_frame(two), "the same frame for all viewers"
        assert [each["name"] for each in first["endpoints"]] == ["a", "b"]
        assert first["endpoints"] == (await gate.served.get("/v1/endpoints"))["endpoints"]
        assert (first["decisions"], first["decisionCount"], first["endpointCount"]) == ([], 0, 2)
        request = await gate.request(100, ("x-request-id", "r1"))
        frame = await next_frame(one)
        while not frame["decisions"]:
            frame = await next_frame(one)
        (shown,) = frame["decisions"]
        kept = await gate.served.get("/v1/decisions/r1")
        assert await gate.served.status("/v1/live") == 503, "both seats are taken"
        request.call.cancel()

    other = next(name for name in ("a", "b") if name != request.endpoint)
    assert (shown["requestId"], shown["picked"], frame["decisionCount"]) == ("r1", [request.endpoint], 1)
    by_name = {each["name"]: each for each in kept["endpoints"]}
    assert shown["rival"]["name"] == other
    for terms, name in ((shown["terms"], request.endpoint), (shown["rival"]["terms"], other)):
        products = [(term["name"], term["product"]) for term in by_name[name]["scores"]]
        assert [(term["name"], term["product"]) for term in terms] == products


async def test_closed_viewer_leaves_no_seat_and_no_task(tmp_path: Path) -> None:
    async with gateway(tmp_path, rest={"maxLiveViewers": 1}) as gate:
        for _ in range(3):
            async with no_new_tasks(), viewer(gate) as one:
                await next_frame(one)
                await gate.served.until_metric("kvatlas_live_viewers 1.0")
            await gate.served.until_metric("kvatlas_live_viewers 0.0")


async def test_viewer_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async with gateway(tmp_path, endpoints=FLEET) as gate, viewer(gate) as one:
        await next_frame(one)
        gate.served.process.terminate()
        async with asyncio.timeout(PATIENCE_S):  # the listener logs an error if it cancels a call
            await one.content.read()
            await gate.served.process.wait()
    assert not [line for line in gate.served.log if "ERROR" in line or "Traceback" in line]


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(b"\0 is no HTTP\r\n\r\n", id="garbage"),
        pytest.param(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", id="another_request"),
    ],
)
async def test_viewer_who_sends_more_and_leaves_is_no_error(rest: bytes, tmp_path: Path) -> None:
    async with gateway(tmp_path) as gate:
        reader, writer = await asyncio.open_connection("127.0.0.1", gate.served.ports["rest"])
        writer.write(b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"\n\n")
        await gate.served.until_metric("kvatlas_live_viewers 1.0")
        writer.write(rest)
        writer.write_eof()
        if rest.startswith(b"GET"):
            await reader.readuntil(b"\n\n")
            writer.transport.abort()
        await gate.served.until_metric("kvatlas_live_viewers 0.0")
        writer.close()
    assert not [line for line in gate.served.log if "ERROR" in line or "Traceback" in line]


async def test_stream_needs_the_token_when_reads_are_protected_and_the_page_does_not(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    auth = {"bearerTokenFile": str(tmp_path / "token"), "protectReads": True}
    async with serving({"server": ANY_PORTS | {"auth": auth}}, tmp_path) as served:
        assert [await served.status(path) for path in ("/v1/live", "/ui", "/ui/app.js")] == [401, 200, 200]
        url = f"http://127.0.0.1:{served.ports['rest']}/v1/live"
        async with served.session.get(url, headers={"authorization": f"Bearer {TOKEN}"}) as answer:
            assert (answer.status, (await next_frame(answer))["ready"]) == (200, True)
