"""The guards of conftest.py: they name leftovers, and accept what ends by itself."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from support.leaks import LeakError, no_blocked_signals, no_new_processes, no_new_tasks, no_new_threads


async def wait_for(event: asyncio.Event) -> None:
    await event.wait()


async def test_tasks_are_named_when_still_pending() -> None:
    release = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    with pytest.raises(LeakError, match="wait_for"):
        async with no_new_tasks(grace_s=0.01):
            tasks.append(asyncio.create_task(wait_for(release)))
    release.set()
    await asyncio.gather(*tasks)


async def test_tasks_pass_when_they_end_within_the_grace() -> None:
    release = asyncio.Event()
    async with no_new_tasks():
        task = asyncio.create_task(wait_for(release))
        release.set()
    assert task.done()


async def test_tasks_pass_when_they_ran_before() -> None:
    release = asyncio.Event()
    task = asyncio.create_task(wait_for(release))
    async with no_new_tasks(grace_s=0.01):
        pass
    release.set()
    await task


def test_threads_are_named_when_still_running() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="left-behind")
    with pytest.raises(LeakError, match="left-behind"), no_new_threads(grace_s=0.01):
        thread.start()
    release.set()
    thread.join()


@pytest.mark.parametrize(
    ("daemon", "name"),
    [
        pytest.param(True, "background", id="daemon"),
        pytest.param(False, "asyncio_0", id="default_executor_of_a_loop"),
    ],
)
def test_threads_pass_when_they_do_not_hold_up_the_exit(daemon: bool, name: str) -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name=name, daemon=daemon)
    with no_new_threads(grace_s=0.01):
        thread.start()
    release.set()
    thread.join()


def test_processes_are_named_when_still_running() -> None:
    command = [sys.executable, "-c", "input()"]
    children: list[subprocess.Popen[bytes]] = []
    with pytest.raises(LeakError, match=r"-c input\(\)"), no_new_processes(grace_s=0.01):
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE))
    for child in children:
        child.communicate(b"\n")


def test_processes_pass_when_waited_for() -> None:
    with no_new_processes(grace_s=0.01):
        subprocess.run([sys.executable, "-c", "pass"], check=True)


def test_blocked_signals_are_named_and_unblocked() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(LeakError, match="SIGUSR1"), no_blocked_signals():
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_signals_pass_when_they_were_blocked_before_or_are_unblocked() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2,))
    with no_blocked_signals():
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
        signal.pthread_sigmask(signal.SIG_SETMASK, {*before, signal.SIGUSR2})
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
