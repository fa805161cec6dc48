"""The demo as a process, with a small workload: real Envoy, real kvatlas."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvatlas.sim.errors import DemoError
from kvatlas.sim.kvatlas_process import KVAtlasProcess
from support.processes import alive, children

pytestmark = pytest.mark.slow

LIMIT_S = 240.0
DEMO = """
import signal, sys
from dataclasses import replace
from rich.console import Console
from kvatlas.sim.demo import WORKLOAD, run_demo
workload = replace(WORKLOAD, groups=3, conversations=2, turns={turns}, system_words=300, reply_tokens=4)
sys.exit(run_demo(Console(width=100), keep={keep}, workload=workload))
"""


@asynccontextmanager
async def running_demo(*, turns: int = 4, keep: bool = False) -> AsyncGenerator[asyncio.subprocess.Process]:
    demo = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        DEMO.format(turns=turns, keep=keep),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            yield demo
    finally:
        if demo.returncode is None:
            demo.kill()
            await demo.wait()


async def read_until(demo: asyncio.subprocess.Process, word: str) -> str:
    """Return the demo's output up to the line with `word`."""
    assert demo.stdout is not None
    text = ""
    while word not in text:
        line = await demo.stdout.readline()
        assert line, f"the demo ended without saying {word!r}:\n{text}"
        text += line.decode()
    return text


async def first_child(demo: asyncio.subprocess.Process) -> list[int]:
    while True:
        if found := children(demo.pid):
            return found
        await asyncio.sleep(0.02)


async def test_demo_compares_both_and_ends_with_status_0() -> None:
    async with running_demo() as demo:
        output, _ = await demo.communicate()

    text = output.decode()
    assert demo.returncode == 0, text
    for word in (
        "/v1/endpoints",
        "prompt tokens found at all",
        "mean time to first token",
        "failed requests",
    ):
        assert word in text


async def test_kept_demo_runs_on_until_ctrl_c_and_leaves_nothing() -> None:
    async with running_demo(keep=True) as demo:
        await read_until(demo, "Ctrl-C ends it")
        started = children(demo.pid)
        demo.send_signal(signal.SIGINT)
        await demo.wait()

    assert demo.returncode == 0
    assert len(started) == 2
    assert not alive(started)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_interrupted_demo_leaves_nothing(number: signal.Signals) -> None:
    async with running_demo(turns=50) as demo:
        started = await first_child(demo)
        demo.send_signal(number)
        await demo.wait()

    assert demo.returncode == 130
    assert not alive(started)


async def test_error_of_kvatlas_is_shown_when_it_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "kvatlas.yaml").write_text("apiVersion: kvatlas/v1\nkind: KVAtlasConfig\nnonsense: 1\n")
    process = KVAtlasProcess(tmp_path / "kvatlas.yaml", log=tmp_path / "log")

    with pytest.raises(DemoError, match=r"(?s)kvatlas ended with status 2.*nonsense"):
        await process.start()
