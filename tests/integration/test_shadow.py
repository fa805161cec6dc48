"""A shadow in a running process: REST, command line, metrics, and a file that changes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from support.fleets import make_endpoint
from support.local_process import LocalProcess, local_process, until_held
from support.recording import player
from support.waiting import until

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
NO_PREFIX = HEAD + "weights: {queue: 1, kvCacheUtilization: 0, gpuPrefixCache: 0, cpuPrefixCache: 0}\n"


async def shadow(process: LocalProcess, *arguments: str) -> tuple[int, str]:
    """Run `kvatlas shadow`; return exit status and output."""
    runner = CliRunner(env={"COLUMNS": "200"})
    result = await asyncio.to_thread(runner.invoke, app, ["shadow", "--url", process.url, *arguments])
    return result.exit_code, result.stdout or result.stderr


async def policy(process: LocalProcess, *arguments: str) -> tuple[int, str]:
    """Run `kvatlas policy`; return exit status and output."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["policy", "--url", process.url, *arguments])
    return result.exit_code, result.stdout or result.stderr


async def until_loaded(process: LocalProcess) -> None:
    async def is_loaded() -> bool:
        async with process.session.get(f"{process.url}/v1/shadow") as answer:
            return (await answer.json())["refusal"] is None

    await until(is_loaded, what="the shadow's file")


async def test_shadow_is_compared_reported_and_reloaded(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(HEAD)
    async with player() as engine:
        endpoints = [make_endpoint("a", events=engine.events), make_endpoint("b", 2)]
        async with local_process(*endpoints, shadow={"file": str(file)}) as process:
            await until_held(process, engine)
            await until_loaded(process)
            nothing = await shadow(process)
            await process.send_requests(6)
            _, as_json = await shadow(process, "--json")
            report = await shadow(process)
            async with process.session.get(f"{process.url}/metrics") as answer:
                metrics = await answer.text()
            file.write_text(HEAD + "weights: {queue: -1}\n")

            async def is_refused() -> bool:
                return (await shadow(process))[0] == 1

            await until(is_refused, what="the refusal")
            refused = await shadow(process)
    assert nothing == (0, f"{file}: no request was compared yet\n")
    found = json.loads(as_json)
    assert (found["requests"]["agreed"], found["requests"]["disagreed"]) == (6, 0)
    assert found["disagreement"]["share"] == 0
    assert found["disagreement"]["high"] < 0.5
    assert found["liveTokens"] == found["shadowTokens"] == {"gpu": 6 * 48}
    assert found["cachedGainTokens"] == {"mean": 0.0, "margin": 0.0, "requests": 6}
    assert found["ttftGainSeconds"] is None
    assert report[1].splitlines()[1:] == [
        "picks another endpoint  0.0% of requests (0.0% to 39.0%)",
        "tokens cached           +0.0 ± 0.0 a request",
        "  in gpu                75.0% of prompt tokens, 75.0% by the shadow",
        "first token             not predicted yet: needs more streamed responses",
    ]
    assert 'kvatlas_shadow_requests_total{outcome="agreed"} 6.0' in metrics
    assert 'kvatlas_shadow_cached_tokens_total{choice="shadow",tier="gpu"} 288.0' in metrics
    assert "weights.queue" in refused[1]
    assert "6 requests in" in refused[1], "the former configuration stays in force"


async def test_shadow_loses_hits_when_it_ignores_prefixes(tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(NO_PREFIX)
    async with player() as engine:
        endpoints = [make_endpoint("a", events=engine.events), make_endpoint("b", 2), make_endpoint("c", 3)]
        async with local_process(*endpoints, shadow={"file": str(file)}) as process:
            await until_held(process, engine)
            await until_loaded(process)
            await process.send_requests(30)
            _, report = await shadow(process)
            _, as_json = await shadow(process, "--json")
    found = json.loads(as_json)
    n = found["requests"]["disagreed"]
    assert 5 < n < 30, "it picks one of three at random"
    assert found["liveTokens"] == {"gpu": 30 * 48}
    assert found["shadowTokens"] == {"gpu": (30 - n) * 48}
    assert found["cachedGainTokens"]["mean"] == pytest.approx(-n * 48 / 30)
    assert found["terms"]["queue-scorer"]["mean"] == 0.0
    assert "queue-scorer          +0.000 ± 0.000 for its picks, where they differ" in report


async def test_setting_is_named_when_a_process_has_no_shadow() -> None:
    async with local_process(make_endpoint("a", events="")) as process:
        await process.send_requests(1)
        assert await shadow(process) == (
            0,
            "there is no shadow; kvatlas shadow --policy latency compares that policy, shadow.file a configuration\n",
        )


async def test_policy_is_compared_and_changed_by_commands_without_a_file() -> None:
    async with player() as engine:
        endpoints = [make_endpoint("a", events=engine.events), make_endpoint("b", 2)]
        async with local_process(*endpoints) as process:
            await until_held(process, engine)
            before = await shadow(process)
            started = await shadow(process, "--policy", "latency")
            await process.send_requests(6)
            _, as_json = await shadow(process, "--json")
            changed = await policy(process, "latency")
            shown = await policy(process, "--json")
            ended = await shadow(process, "--policy", "none")
    assert before[1].startswith("there is no shadow; kvatlas shadow --policy latency compares")
    assert started == (0, "policy latency: no request was compared yet\n")
    found = json.loads(as_json)
    assert (found["policy"], found["file"]) == ("latency", None)
    assert found["requests"]["agreed"] + found["requests"]["disagreed"] == 6
    assert changed == (0, "latency (configuration 3)\n")
    in_force = json.loads(shown[1])
    assert (in_force["generation"], in_force["policy"], len(in_force["costs"])) == (3, "latency", 1)
    assert ended[1] == before[1]
