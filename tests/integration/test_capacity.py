"""The size curve of a running process: REST, command line, metrics."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from kvatlas.app.cli.main import app
from kvatlas.routing.observers.capacity import curve
from support.fleets import make_endpoint
from support.local_process import LocalProcess, local_process, until_held
from support.recording import player
from support.waiting import until


async def capacity(process: LocalProcess, *arguments: str) -> tuple[int, str]:
    """Run `kvatlas capacity`; return exit status and output."""
    runner = CliRunner(env={"COLUMNS": "200"})
    command = ["capacity", "--url", process.url, *arguments]
    result = await asyncio.to_thread(runner.invoke, app, command)
    return result.exit_code, result.stdout or result.stderr


async def metrics(process: LocalProcess) -> str:
    async with process.session.get(f"{process.url}/metrics") as answer:
        return await answer.text()


async def test_curve_of_routed_requests_is_shown_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "REFRESH_S", 0.01)
    async with player() as engine:
        endpoint = make_endpoint("a", events=engine.events)
        async with local_process(endpoint, model={"kvBytesPerToken": 262144}) as process:
            nothing = await capacity(process)
            await until_held(process, engine)
            await process.send_requests(4)
            as_json = await capacity(process, "--gib", "100,0", "--json")
            table = await capacity(process, "--by-endpoint")

            async def is_shown() -> bool:
                return 'kvatlas_capacity_curve_hit_ratio{gib="10"} 0.7' in await metrics(process)

            await until(is_shown, what="the curve in the metrics")
            text = await metrics(process)
    assert nothing == (0, "no request with token ids was routed yet\n")
    found = json.loads(as_json[1])
    assert found["points"][0] == {"gib": 0.0, "hitRate": 0.0, "gainPer10Gib": pytest.approx(0.075, rel=0.01)}
    assert found["points"][1] == {
        "gib": 100.0,
        "hitRate": pytest.approx(0.75, rel=0.01),
        "gainPer10Gib": None,
    }
    (server,) = found["endpoints"]
    assert (server["name"], server["blockSize"], server["followedKeys"]) == ("a", 16, 1)
    assert (server["kvBytesPerToken"], server["kvBytesSource"]) == (262144, "model.kvBytesPerToken")
    assert server["tokens"] == pytest.approx(4 * 64, rel=0.01)
    lines = table[1].splitlines()
    assert lines[0].split() == [*("CPU", "GiB", "all:", "found", "10", "GiB", "more"), *("a:", "found", "10", "GiB", "more")]  # fmt: skip
    assert lines[1].split() == ["0", "0.0%", "+75.00", "0.0%", "+75.00"]
    assert lines[-1].split() == ["1000", "75.0%", "75.0%"]
    assert 'kvatlas_capacity_curve_keys{endpoint="a"} 1.0' in text


async def test_memory_of_a_token_is_requested_when_it_is_unknown() -> None:
    async with player() as engine, local_process(make_endpoint("a", events=engine.events)) as process:
        await until_held(process, engine)
        await process.send_requests(2)
        status, stdout = await capacity(process)
    assert (status, stdout.splitlines()) == (
        0,
        [
            "a: memory of a token is not known; 50.0% found at most",
            "  model.kvBytesPerToken: bytes that the KV state of a token takes, on all GPUs of a server together",
        ],
    )


async def test_setting_is_named_when_the_curve_is_off() -> None:
    async with local_process(make_endpoint("a", events=""), capacityCurve={"enabled": False}) as process:
        await process.send_requests(1)
        assert await capacity(process) == (0, "no curve is kept; capacityCurve.enabled: true\n")
        assert await capacity(process, "--gib", "0,much") == (
            2,
            "kvatlas: --gib: found '0,much', expected numbers separated by commas, such as 0,50,100\n",
        )
        assert "kvatlas_capacity_curve_keys{" not in await metrics(process)
