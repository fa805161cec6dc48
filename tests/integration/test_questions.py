"""An operator's questions on the command line, over a fleet that has served real traffic through Envoy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from kvatlas.app.cli.main import app as command_line
from kvatlas.sim.demo_model import MODEL_NAME
from support.dashboard import GPU_BLOCKS, Installation, chat_messages, installation, send_traffic
from support.serve import ANY_PORTS
from support.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]

TOKEN = "a-token-that-is-not-to-be-shown"  # noqa: S105 - used by this test alone
SYSTEM, QUESTION = "zebra quartz lantern marmalade " * 60, "whence the violet periscope"


@dataclass
class Served:
    """A fleet, and the endpoint that answered the question of this test.

    Attributes:
        installed: the fleet.
        by: the endpoint that answered.
        folder: holds the token, and the question as chat messages.
    """

    installed: Installation
    by: str
    folder: Path

    async def ask(self, *arguments: str) -> tuple[int, str]:
        """Run a command; return exit status and stdout."""
        command, *more = arguments
        where = ("--url", self.installed.url, "--token-file", str(self.folder / "token"))
        runner = CliRunner(env={"COLUMNS": "200"})
        result = await asyncio.to_thread(runner.invoke, command_line, [command, *where, *more])
        return result.exit_code, result.stdout

    async def ask_json(self, *arguments: str) -> Any:
        return json.loads((await self.ask(*arguments, "--json"))[1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Served]:
    folder = tmp_path_factory.mktemp("questions")
    (folder / "token").write_text(TOKEN)
    (folder / "messages.json").write_text(json.dumps(chat_messages(SYSTEM, QUESTION)))
    server = ANY_PORTS | {"auth": {"bearerTokenFile": str(folder / "token")}}
    async with installation(folder, "--log-level", "debug", server=server) as installed:

        async def is_judged() -> bool:
            """Return whether each endpoint has had the twenty requests that the doctor needs, after sending more."""
            await send_traffic(installed)
            checks = (await installed.served.get("/v1/doctor"))["checks"]
            return all(each["state"] != "unknown" for each in checks if each["name"] == "expectations-held")

        await until(is_judged, what="enough requests of each endpoint")
        yield Served(installed, await installed.chat(SYSTEM, QUESTION), folder)


async def test_query_finds_the_server_of_a_prefix(served: Served) -> None:
    question = ("query", "--model", MODEL_NAME, "--messages", str(served.folder / "messages.json"))

    async def is_known() -> bool:
        endpoints = (await served.ask_json(*question))["endpoints"]
        held = {each["name"]: each["prefix"]["usableTokens"] for each in endpoints if each["prefix"]}
        best: str = max(held, key=lambda name: held[name])
        return bool(held[served.by] > 200) and best == served.by

    await until(is_known, what=f"the prompt on {served.by}")
    status, table = await served.ask(*question)
    assert status == 0
    assert table.splitlines()[2].startswith(served.by), "the server with the longest prefix comes first"


async def test_explain_shows_why_the_server_was_picked(served: Served) -> None:
    status, table = await served.ask("explain", "--last")
    decision = await served.ask_json("explain", "--last")
    scored = {each["name"]: each["total"] for each in decision["endpoints"]}
    assert status == 0
    assert f"-> {served.by}" in table
    assert decision["picked"][0] == served.by
    assert scored[served.by] == max(scored.values())


async def test_audit_confirms_the_index(served: Served) -> None:
    async def is_audited() -> bool:
        return (await served.ask_json("explain", "--last"))["audited"] is not None

    await until(is_audited, what="the engine's own count")
    last = await served.ask_json("explain", "--last")
    checks = {check["name"]: check for check in (await served.ask_json("doctor"))["checks"]}
    assert last["audited"]["verdict"] == "good"
    assert checks["expectations-held"]["state"] == "ok"
    assert "requests reused what was expected" in checks["expectations-held"]["evidence"][0]


async def test_doctor_names_the_misconfiguration(served: Served) -> None:
    status, table = await served.ask("doctor")
    assert status == 0, "requests are served nevertheless"
    assert f"tier gpu is bounded to {20 * GPU_BLOCKS} blocks, the engine has {GPU_BLOCKS}" in table
    assert "mend: tiers[gpu].lruCapacityPerServer: auto" in table


async def test_top_shows_the_fleet(served: Served) -> None:
    status, text = await served.ask("top", "--once", "--interval", "0.1")
    assert status == 0
    assert "4 endpoints" in text
    assert f"{served.by} " in text


async def test_no_line_of_the_log_holds_a_prompt_or_the_token(served: Served) -> None:
    log = "\n".join(served.installed.served.log)
    assert " INFO " in log
    for secret in (TOKEN, "zebra", "lantern", "periscope"):
        assert secret not in log
