"""`kvatlas query`: the cached prefix of a prompt, read from a running process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from support.fleets import make_endpoint
from support.local_process import PROMPT, local_process, until_held
from support.recording import player


async def query(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run `kvatlas query`; return exit status, stdout and stderr."""
    runner = CliRunner(env={"COLUMNS": "200"})
    result = await asyncio.to_thread(runner.invoke, app, ["query", *arguments], input=stdin)
    return result.exit_code, result.stdout, result.stderr


async def test_query_shows_the_holders_of_a_prompt_and_their_tiers(tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    file.write_text(json.dumps(PROMPT))
    endpoints = [make_endpoint("b", 2), make_endpoint("c", 3)]
    async with (
        player() as engine,
        local_process(make_endpoint("a", events=engine.events), *endpoints) as process,
    ):
        await until_held(process, engine)
        table = await query("--url", process.url, "--model", "m", "--token-ids", str(file))
        as_json = await query("--url", process.url, "--token-ids", "-", "--json", stdin=json.dumps(PROMPT))
        no_tokenizer = await query("--url", process.url, "--prompt", "Where is my cache?")
    assert (table[0], as_json[0]) == (0, 0)
    title, heading, first, *_ = table[1].splitlines()
    assert title == "m, 64 tokens"
    assert heading.split()[:3] == ["endpoint", "reusable", "gpu"]
    assert first.split()[:3] == ["a", "48", "64"], "the engine always computes the prompt's last token"
    assert first.split()[-3:-1] == ["4", "gpu"]
    assert json.loads(as_json[1])["endpoints"][0]["prefix"]["tierTokens"]["gpu"] == 64
    assert "no prefix: no_tokenizer" in no_tokenizer[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "give one of --prompt, --messages and --token-ids", id="nothing"),
        pytest.param(["--prompt", "x", "--messages", "-"], "give one of", id="two"),
        pytest.param(
            ["--token-ids", "nowhere.json"], "--token-ids: nowhere.json cannot be used", id="no_file"
        ),
        pytest.param(
            ["--prompt", "x", "--url", "http://127.0.0.1:1"], "is kvatlas there?", id="nobody_there"
        ),
    ],
)
async def test_query_refuses_wrong_use(arguments: list[str], message: str) -> None:
    status, _, stderr = await query(*arguments, stdin="[]")

    assert (status, message in stderr) == (2, True), stderr
