"""`kvatlas demo --compare` with a small load: real Envoy, real kvatlas, and a second kvatlas as the other picker."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvatlas.sim.picker_process import PickerProcess
from support.processes import alive, children
from support.waiting import until

pytestmark = pytest.mark.slow

LIMIT_S = 240.0
COMPARE = """
import sys
from rich.console import Console
from kvatlas.sim.compare.command import CompareOptions, run_compare
from kvatlas.sim.compare.load import ChatLoad
from kvatlas.sim.errors import SimError
load = ChatLoad(rate=1, seconds=1, turns=2, groups=2, system_words=100, user_words=20, reply_tokens=4, think_s=0.1)
options = CompareOptions(names={names}, picker={picker!r}, servers=2, rates=(4.0,), seconds={seconds}, as_json=True)
try:
    sys.exit(run_compare(Console(width=100), options, load=load))
except SimError as error:
    sys.exit(f"demo: {{error}}")
"""
REFERENCE = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}]
"""
KVATLAS = (
    f"{sys.executable} -m kvatlas.app.cli.main serve --config-file {{config}} --grpc-port {{port}} "
    "--grpc-health-port {health} --metrics-port {metrics} --secure-serving=false --metrics-endpoint-auth=false"
)


@asynccontextmanager
async def running(
    names: list[str], *, picker: str = "", seconds: float = 2.0
) -> AsyncGenerator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        COMPARE.format(names=names, picker=picker, seconds=seconds),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def reference(tmp_path: Path) -> str:
    file = tmp_path / "theirs.yaml"
    file.write_text(REFERENCE)
    return str(file)


async def test_policies_and_another_picker_get_the_same_chats(reference: str) -> None:
    async with running(["round-robin", "latency", reference], picker=KVATLAS) as process:
        output, errors = await process.communicate()

    assert process.returncode == 0, errors.decode()
    found = json.loads(output)
    assert [row["policy"] for row in found["rows"]] == ["round-robin", "latency", "theirs", "theirs (other)"]
    runs = [run for row in found["rows"] for run in row["runs"]]
    assert len({run["requests"] for run in runs}) == 1
    assert runs[0]["requests"] > 4
    assert all((run["failed"], run["withoutPicker"]) == (0, 0) for run in runs)
    assert all(run["ttftMean"] > 0 and run["cached"] > 0 for run in runs)
    assert found["settings"]["picker"] == KVATLAS


async def test_ctrl_c_leaves_nothing(reference: str) -> None:
    async with running([reference], seconds=600.0) as process:
        await until(lambda: len(children(process.pid)) == 2, what="kvatlas and Envoy")
        started = children(process.pid)
        process.send_signal(signal.SIGINT)
        await process.communicate()

    assert process.returncode == 130
    assert not alive(started)


@pytest.mark.parametrize(
    ("picker", "problem"),
    [
        pytest.param(
            "/bin/sh -c 'echo no such flag {port}; exit 3'",
            r"theirs (other): the picker ended with status 3:",
            id="ends",
        ),
        pytest.param(
            "/nowhere/epp {port}",
            "--picker: '/nowhere/epp' is no program that can be run",
            id="none",
        ),
    ],
)
async def test_picker_that_does_not_start_is_an_error(reference: str, picker: str, problem: str) -> None:
    async with running([reference], picker=picker, seconds=1.0) as process:
        _, errors = await process.communicate()

    assert process.returncode == 1
    assert problem in errors.decode()


async def test_all_processes_of_another_picker_end_with_it(tmp_path: Path, reference: str) -> None:
    command = (
        f"/bin/sh -c 'sleep 1000 & echo $! > {tmp_path}/pid; exec {sys.executable} -m http.server {{port}}'"
    )
    picker = PickerProcess(command, config=Path(reference), servers=[("127.0.0.1", 1)], folder=tmp_path)
    async with picker:
        started = int((tmp_path / "pid").read_text())
        assert alive([started]) == [started]
        picker.check()

    await until(lambda: not alive([started]), what="the end of its child")
