"""Tasks whose work fails: reported, and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from kvatlas.events import tasks
from kvatlas.events.tasks import TaskFailure, keep, spawn
from support.waiting import until


@pytest.fixture
async def failures(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[list[TaskFailure]]:
    monkeypatch.setattr(tasks, "RESTART_S", 0.01)
    found: list[TaskFailure] = []
    loop = asyncio.get_running_loop()

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        found.append(context["failure"])

    loop.set_exception_handler(handle)
    yield found
    loop.set_exception_handler(None)


async def test_work_starts_again_after_each_exception_until_it_returns(failures: list[TaskFailure]) -> None:
    errors: list[Exception] = [ValueError(), RecursionError(), MemoryError()]

    async def work() -> None:
        if errors:
            raise errors.pop(0)

    task = keep(work, "events", of="tcp://a")
    await task

    assert [type(each.error) for each in failures] == [ValueError, RecursionError, MemoryError]
    assert {(each.task, each.of, each.pause_s) for each in failures} == {
        ("events", "tcp://a", pause_s) for pause_s in (0.01, 0.02, 0.04)
    }
    assert task.get_name() == "events tcp://a"


async def test_pause_doubles_with_each_failure_in_a_row_up_to_the_longest(
    failures: list[TaskFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "LONGEST_RESTART_S", 0.05)

    async def work() -> None:
        if len(failures) == 5:
            return
        if len(failures) == 4:
            await asyncio.sleep(0.06)  # works for a while
        raise KeyError

    await keep(work, "snapshots", needed=False)

    assert [each.pause_s for each in failures] == [0.01, 0.02, 0.04, 0.05, 0.01]
    assert not any(each.needed for each in failures)


async def test_kept_task_ends_when_it_is_cancelled(failures: list[TaskFailure]) -> None:
    task = keep(lambda: asyncio.sleep(60), "sweep")
    await asyncio.sleep(0)

    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    assert failures == []


async def test_kept_task_ends_when_it_is_cancelled_before_its_work_starts_again(
    failures: list[TaskFailure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "RESTART_S", 60.0)

    async def work() -> None:
        raise KeyError

    task = keep(work, "sweep")
    await until(lambda: bool(failures), what="a failure")
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()


async def test_cancellation_of_what_the_work_awaits_does_not_end_the_task(
    failures: list[TaskFailure],
) -> None:
    cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    cancelled.cancel()
    n_runs = 0

    async def work() -> None:
        nonlocal n_runs
        n_runs += 1
        if n_runs == 1:
            await cancelled

    await keep(work, "discovery")

    assert n_runs == 2
    assert [type(each.error) for each in failures] == [asyncio.CancelledError]


@pytest.mark.parametrize(("vital", "pause_s"), [(False, 0.0), (True, None)])
async def test_failure_of_work_that_cannot_start_again_is_reported(
    failures: list[TaskFailure], *, vital: bool, pause_s: float | None
) -> None:
    async def work() -> None:
        raise KeyError

    task = spawn(work(), "replay", vital=vital)
    await asyncio.wait([task])
    await asyncio.sleep(0)

    assert [(each.task, each.pause_s) for each in failures] == [("replay", pause_s)]
