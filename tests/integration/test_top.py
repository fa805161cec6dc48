"""`kvatlas top` with a running process: on a real terminal, in a pipe, and while the process restarts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from typer.testing import CliRunner

from kvatlas.api.rest.frame_models import LiveFrame
from kvatlas.app.cli.main import app as command_line
from kvatlas.sim.held_port import HeldPort
from support.gateway import FLEET, Gateway, gateway
from support.local_process import local_process
from support.publishing import stored
from support.recording import player
from support.serve import ANY_PORTS, serving
from support.terminal import HOME, LEAVES_SCREEN, SHOWS_CURSOR, terminal
from support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.slow


@asynccontextmanager
async def routed(folder: Path, **server: Any) -> AsyncGenerator[Gateway]:
    """Run a process that has one endpoint's events, and send it a request."""
    async with player() as engine:
        address = {"address": "127.0.0.1:1", "events": engine.events, "replay": engine.replay}
        known = {"name": "a", "metrics": "", **address}
        silent = {"name": "b", "address": "127.0.0.1:2", "metrics": "", "events": ""}
        tiers = [{"name": "gpu", "media": ["GPU"], "lruCapacityPerServer": 128}]
        sections = {"endpoints": {"static": [known, silent]}, "server": ANY_PORTS | server}
        async with gateway(folder, tiers=tiers, **sections) as gate:
            await engine.publish(stored(0, range(1024)))
            await gate.served.until_metric('kvatlas_residencies{endpoint="a",tier="gpu"} 64.0')
            request = await gate.request(1024, ("x-request-id", "first"))
            await request.end()
            yield gate


class Piped:
    """A `kvatlas top` that writes to files, as in a pipe."""

    def __init__(self, process: asyncio.subprocess.Process, out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err

    @property
    def out(self) -> str:
        """Everything on stdout so far."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """Everything on stderr so far."""
        return self._err.read_text()

    def n_lines(self) -> int:
        """Return the number of lines on stdout so far."""
        return self.out.count("\n")


@asynccontextmanager
async def piped(folder: Path, name: str, *arguments: str) -> AsyncGenerator[Piped]:
    """Run `kvatlas top` with these arguments, and interrupt it at the end."""
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        command = [sys.executable, "-m", "kvatlas.app.cli.main", "top", "--interval", "0.1", *arguments]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=stdout, stderr=stderr, env=os.environ | {"COLUMNS": "120"}
        )
    try:
        yield Piped(process, out, err)
    finally:
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def run(*arguments: str) -> tuple[int, str, str]:
    """Run `kvatlas top` in a pipe; return exit status, stdout and stderr."""
    runner = CliRunner(env={"COLUMNS": "120"})
    result = await asyncio.to_thread(runner.invoke, command_line, ["top", "--interval", "0.1", *arguments])
    return result.exit_code, result.stdout, result.stderr


async def test_terminal_shows_the_process_in_its_size_and_misses_it_until_it_is_back(tmp_path: Path) -> None:
    port = HeldPort()
    rest = f"127.0.0.1:{port.number}"
    async with AsyncExitStack() as watching:
        async with routed(tmp_path, rest=rest) as gate:
            where = ("--url", gate.url)
            shown = await watching.enter_async_context(terminal("top", *where, "--interval", "0.2"))
            await shown.until_shown(
                "a second: 0 requests",
                "live",
                "no events",
                "64/128",
                "first",
                "gpu-prefix-cache +1.00 over b",
            )
            wide = shown.screen
            shown.resize(columns=60, lines=10)

            def is_narrow() -> bool:
                return "first" in "".join(shown.screen) and max(map(len, shown.screen)) <= 60

            await until(is_narrow, what="the same within 60 columns")
            narrow = shown.screen
            lines = await watching.enter_async_context(piped(tmp_path, "lines", *where, "--json"))
            texts = await watching.enter_async_context(piped(tmp_path, "texts", *where))
            await until(lambda: lines.n_lines() > 2 and texts.n_lines() > 2, what="one line per sample")
        await shown.until_shown("  gone: ")
        await until(lambda: lines.err and texts.err, what="one line on the lost connection")
        again = {"endpoints": FLEET, "server": ANY_PORTS | {"rest": rest}}
        async with serving(again, tmp_path):
            await shown.until_shown("  ready  2 endpoints")
            n_before = lines.n_lines()
            await until(lambda: lines.n_lines() > n_before, what="lines again")
            shown.interrupt()
            status = await asyncio.wait_for(shown.process.wait(), PATIENCE_S)
            await watching.aclose()  # before the server ends: that would be a second lost connection
    assert wide[0].startswith(f"kvatlas {gate.url}  ready  2 endpoints, 64 keys")
    assert (len(wide) <= 24, len(narrow) <= 10, narrow[0].endswith("…")) == (True, True, True)
    assert status == 0
    assert LEAVES_SCREEN in shown.written
    assert SHOWS_CURSOR in shown.written
    assert "Traceback" not in shown.written
    assert [each.err.count("; asking again every 0.1 s\n") for each in (lines, texts)] == [1, 1]
    first, *_, last = (json.loads(line) for line in lines.out.splitlines())
    assert (first["rates"], last["frame"]["endpointCount"]) == (None, 2)
    assert texts.out.count("  ready  2 endpoints") > 2


async def test_pipes_and_dumb_terminals_get_plain_text_and_programs_json_with_the_token(
    tmp_path: Path,
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    auth = {"bearerTokenFile": str(token), "protectReads": True}
    async with serving({"endpoints": FLEET, "server": ANY_PORTS | {"auth": auth}}, tmp_path) as served:
        where = ("--url", f"http://127.0.0.1:{served.ports['rest']}")
        admitted = (*where, "--token-file", str(token))
        refused = await run(*where, "--once")
        text = await run(*admitted, "--once")
        as_json = await run(*admitted, "--once", "--json")
        async with terminal("top", *admitted, "--interval", "0.2", kind="dumb") as dumb:
            await dumb.until_shown("2 endpoints", "no events", "a second: 0 requests")
    nobody = await run("--url", "http://127.0.0.1:1")
    answer = json.loads(as_json[1])
    assert (refused[0], "see --token-file" in refused[2]) == (2, True)
    assert (nobody[0], "is kvatlas there?" in nobody[2]) == (2, True)
    assert (text[0], as_json[0], "no events" in text[1]) == (0, 0, True)
    assert "\x1b" not in text[1] + dumb.written
    assert HOME not in dumb.written
    assert [endpoint["name"] for endpoint in answer["frame"]["endpoints"]] == ["a", "b"]
    assert answer["rates"]["requests"] == 0


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        pytest.param(b"", "/v1/live: ended without an event", id="about_to_stop"),
        pytest.param(b"id: 1\ndata: {}\n\n", "answered 200, not as kvatlas does", id="something_else"),
    ],
)
async def test_stream_is_refused_when_it_is_not_from_kvatlas(events: bytes, shown: str) -> None:
    async def live(_request: web.Request) -> web.Response:
        return web.Response(body=events, content_type="text/event-stream")

    app = web.Application()
    app.router.add_get("/v1/live", live)
    async with TestServer(app) as server:
        status, _, stderr = await run("--once", "--url", str(server.make_url("/")))
    assert (status, shown in stderr) == (2, True), stderr


async def test_metrics_are_refused_when_they_are_a_page_of_something_else() -> None:
    frame = LiveFrame(
        time=datetime.now(UTC), ready=True, generation=1, keys=0, residencies=0, bytes=0,
        endpoint_count=0, endpoints=[], decision_count=0, decisions=[],
    )  # fmt: skip

    async def live(_request: web.Request) -> web.Response:
        return web.Response(text=f"data: {frame.model_dump_json(by_alias=True)}\n\n")

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/v1/live", live), web.get("/metrics", metrics)])
    async with TestServer(app) as server:
        status, _, stderr = await run("--once", "--url", str(server.make_url("/")))
    assert (status, "/metrics: not as kvatlas answers: invalid metric name" in stderr) == (2, True), stderr


async def test_rates_are_unknown_when_the_token_is_not_that_of_metrics(tmp_path: Path) -> None:
    (tmp_path / "metrics-token").write_text("watcher")
    auth = {"metricsTokenFile": str(tmp_path / "metrics-token")}
    async with local_process(server=ANY_PORTS | {"auth": auth}) as process:
        status, stdout, _ = await run("--once", "--url", process.url)
        as_json = await run("--once", "--json", "--url", process.url)
    assert (status, "a second: not known" in stdout) == (0, True)
    assert json.loads(as_json[1])["rates"] is None


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
async def test_reader_that_leaves_ends_it_quietly(form: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    async with local_process(server=ANY_PORTS) as process:
        top = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kvatlas.app.cli.main", "top", "--interval", "0.1"),
            *("--url", process.url, *form),
            stdout=writing,
            stderr=asyncio.subprocess.PIPE,
        )
        os.close(writing)
        try:
            assert await asyncio.to_thread(os.read, reading, 1)
        finally:
            os.close(reading)
        _, stderr = await asyncio.wait_for(top.communicate(), PATIENCE_S)
    assert (top.returncode, stderr) == (141, b"")
