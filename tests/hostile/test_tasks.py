"""Tasks that end by a bug: the process says so, is not ready, and starts them again."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from kvatlas.app.app import App
from kvatlas.events.tasks import keep, spawn
from support.fleets import make_config, make_endpoint
from support.local_process import LocalProcess, local_process
from support.serve import ANY_PORTS
from support.waiting import until


async def readiness(process: LocalProcess) -> tuple[int, str]:
    async with process.session.get(f"{process.url}/readyz") as response:
        return response.status, await response.text()


async def failed(process: LocalProcess, task: str) -> float | None:
    async with process.session.get(f"{process.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    name = f'kvatlas_tasks_failed_total{{task="{task}"}} '
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), None)


async def is_ready(process: LocalProcess) -> bool:
    return (await readiness(process))[0] == 200


async def test_process_is_not_ready_until_a_failed_task_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    secrets, runs = ["prompt"], list[bool]()

    async def work() -> None:
        if secrets:
            raise KeyError(secrets.pop())
        runs.append(True)

    async with local_process(make_endpoint("a", events="")) as process:
        await until(lambda: is_ready(process), what="readiness")
        keep(work, "probe", of="the test")
        await asyncio.sleep(0)
        status, text = await readiness(process)
        await until(lambda: bool(runs), what="the work that starts again")
        await until(lambda: is_ready(process), what="readiness")
        n_failed = await failed(process, "probe")

    assert status == 503
    assert "a bug ended the task probe, which starts again" in text
    assert n_failed == 1
    assert "probe the test: a bug ended this task" in caplog.text
    assert "prompt" not in caplog.text


async def test_process_stays_ready_when_a_task_fails_without_which_requests_are_served() -> None:
    async def work() -> None:
        raise KeyError

    async with local_process(make_endpoint("a", events="")) as process:
        await until(lambda: is_ready(process), what="readiness")
        task = keep(work, "probe", needed=False)
        await asyncio.sleep(0)
        n_failed, status = await failed(process, "probe"), (await readiness(process))[0]
        task.cancel()

    assert n_failed == 1
    assert status == 200


async def test_failed_callback_is_counted_without_its_values(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: str) -> None:
        raise ValueError("a prompt")

    async with local_process(make_endpoint("a", events="")) as process:
        await until(lambda: is_ready(process), what="readiness")
        asyncio.get_running_loop().call_soon(fail, "a prompt")
        await asyncio.sleep(0)
        n_failed, is_still_ready = await failed(process, "other"), await is_ready(process)

    assert n_failed == 1
    assert is_still_ready
    assert "a prompt" not in caplog.text


async def test_process_ends_with_a_status_when_a_task_fails_that_cannot_start_again() -> None:
    async def work() -> None:
        raise KeyError

    app = App(make_config(server=ANY_PORTS, endpoints={"static": [make_endpoint("a", events="")]}))
    running = asyncio.create_task(app.run())
    async with aiohttp.ClientSession() as session:
        await until(lambda: "metrics" in app.ports, what="the listeners")
        process = LocalProcess(app, session)
        await until(lambda: is_ready(process), what="readiness")
        spawn(work(), "listener", vital=True)
        status = await running

    assert status == 1
