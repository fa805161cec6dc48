"""The parent of several workers, as a process: restarts, signals and exit statuses."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.waiting import PATIENCE_S

PROGRAM = r"""
import os, signal, sys, time
from pathlib import Path
from kvatlas.app.workers import supervisor
supervisor.PAUSE_S = 0.01
supervisor.START_S = {start_s}

def show(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # whole lines, beside another process

def stop(*_):
    os._exit(0)

def run(worker):
    show("worker", worker, os.getpid())
    {body}
    signal.signal(supervisor.END, stop)
    signal.signal(supervisor.RELOAD, lambda *_: show("hup", worker))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [supervisor.RELOAD])
    beats.beat(worker)
    show("waits", worker)
    while True:
        beats.beat(worker)
        time.sleep(0.05)

n_forks, fork_really = 0, os.fork

def fork():
    global n_forks
    n_forks += 1
    if n_forks == {n_fails}:
        show("fork fails")
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return fork_really()

os.fork = fork
beats = supervisor.Heartbeats(2)
sys.exit(supervisor.Supervisor(2, run, gives_up=2, heartbeats=beats, timeout_s=1).serve())
"""

RACE = r"""
import os, signal, sys
from kvatlas.app.workers import supervisor

reap = os.waitpid

def waitpid(pid, options):
    found = reap(pid, options)
    if found[0]:
        signal.raise_signal(signal.SIGTERM)
    return found

os.waitpid = waitpid
beats = supervisor.Heartbeats(1)
sys.exit(supervisor.Supervisor(1, lambda worker: 0, gives_up=2, heartbeats=beats, timeout_s=1).serve())
"""


FOREIGN = r"""
import os, sys, time
from kvatlas.app.workers import supervisor

foreign = os.fork()
if foreign == 0:
    os._exit(0)

def run(worker):
    while True:
        try:
            os.kill(foreign, 0)
        except ProcessLookupError:  # the parent has reaped it
            return 2
        time.sleep(0.01)

beats = supervisor.Heartbeats(1)
sys.exit(supervisor.Supervisor(1, run, gives_up=2, heartbeats=beats, timeout_s=60).serve())
"""


class Running:
    """The parent and the output of its workers."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.pids: dict[int, int] = {}
        """Worker -> the process it has at present."""

    async def until(self, *wanted: str) -> None:
        """Wait until each of these lines was printed, in any order."""
        missing = list(wanted)
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            while missing:
                line = (await self.process.stdout.readline()).decode().strip()
                assert line, f"ended without {missing}"
                if line.startswith("worker"):
                    _, worker, pid = line.split()
                    self.pids[int(worker)] = int(pid)
                elif line in missing:
                    missing.remove(line)


@asynccontextmanager
async def supervised(
    body: str = "pass", *, start_s: float = 300.0, n_fails: int = 0
) -> AsyncGenerator[Running]:
    """Run a parent of two workers.

    Args:
        body: a line that each worker runs first.
        start_s: time for the first heartbeat.
        n_fails: number of the fork that fails, from 1; 0 for none.
    """
    program = PROGRAM.replace("{body}", body).replace("{start_s}", str(start_s))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program.replace("{n_fails}", str(n_fails)),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield Running(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # stopped ones too
        await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_all_workers_and_their_parent_with_status_0(number: signal.Signals) -> None:
    async with supervised() as running:
        await running.until("waits 0", "waits 1")
        for pid in running.pids.values():
            os.kill(pid, number)  # as a terminal does; only the parent reacts
        running.process.send_signal(number)

        assert await asyncio.wait_for(running.process.wait(), PATIENCE_S) == 0


async def test_signal_that_comes_just_when_a_worker_has_ended_does_not_end_the_parent_with_an_error() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", RACE)

    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0


async def test_child_that_is_no_worker_is_reaped_and_ends_nothing() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FOREIGN)

    assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 2


async def test_other_signal_reaches_every_worker() -> None:
    async with supervised() as running:
        await running.until("waits 0", "waits 1")
        running.process.send_signal(signal.SIGHUP)

        await running.until("hup 0", "hup 1")


async def test_signal_to_load_again_is_kept_for_workers_that_are_starting(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    body = f"show('begins', worker)\n    while not Path({str(mark)!r}).exists(): time.sleep(0.01)"
    async with supervised(body) as running:
        await running.until("begins 0", "begins 1")
        before = dict(running.pids)
        running.process.send_signal(signal.SIGHUP)
        os.kill(before[0], signal.SIGHUP)
        mark.touch()

        await running.until("hup 0", "hup 1")
        assert running.pids == before


async def test_worker_that_dies_is_started_again_and_the_other_stays() -> None:
    async with supervised() as running:
        await running.until("waits 0", "waits 1")
        before = dict(running.pids)
        os.kill(before[1], signal.SIGKILL)
        await running.until("waits 1")

        assert running.pids[0] == before[0]
        assert running.pids[1] != before[1]
        running.process.terminate()
        assert await asyncio.wait_for(running.process.wait(), PATIENCE_S) == 0


async def test_worker_that_fails_once_is_started_again(tmp_path: Path) -> None:
    mark = f"{tmp_path}/mark"
    body = f"Path({mark!r}).exists() or Path({mark!r}).touch() or [][1]"
    async with supervised(body) as running:
        await running.until("waits 0", "waits 1")


async def test_worker_that_gives_up_takes_all_with_it() -> None:
    async with supervised("if worker: return 2") as running:
        assert await asyncio.wait_for(running.process.wait(), PATIENCE_S) == 2


async def test_worker_that_gives_up_when_it_is_started_again_leaves_the_others_alone(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    body = f"if worker and Path({str(mark)!r}).exists(): Path({str(mark)!r}).unlink(); return 2"
    async with supervised(body) as running:
        await running.until("waits 0", "waits 1")
        before = dict(running.pids)
        mark.touch()
        os.kill(before[1], signal.SIGKILL)
        await running.until("waits 1")

        assert running.pids[0] == before[0]
        assert not mark.exists()


async def test_worker_that_gives_up_when_it_is_started_again_as_the_only_one_ends_the_parent(
    tmp_path: Path,
) -> None:
    mark = tmp_path / "mark"
    body = f"if Path({str(mark)!r}).exists(): return 2"
    async with supervised(body) as running:
        await running.until("waits 0", "waits 1")
        mark.touch()
        for pid in running.pids.values():
            os.kill(pid, signal.SIGKILL)

        assert await asyncio.wait_for(running.process.wait(), PATIENCE_S) == 2


async def test_worker_that_cannot_be_forked_is_started_later() -> None:
    async with supervised(n_fails=3) as running:
        await running.until("waits 0", "waits 1")
        before = dict(running.pids)
        os.kill(before[1], signal.SIGKILL)
        await running.until("fork fails", "waits 1")

        assert running.pids[0] == before[0]


async def test_workers_end_with_a_parent_that_is_killed() -> None:
    async with supervised() as running:
        await running.until("waits 0", "waits 1")
        running.process.kill()
        assert running.process.stdout is not None

        # their end of the pipe closes with them
        assert await asyncio.wait_for(running.process.stdout.read(), PATIENCE_S) == b""


async def test_worker_that_hangs_is_killed_and_started_again_and_the_other_stays() -> None:
    async with supervised() as running:
        await running.until("waits 0", "waits 1")
        before = dict(running.pids)
        os.kill(before[1], signal.SIGSTOP)
        await running.until("waits 1")

        assert running.pids[0] == before[0]
        assert running.pids[1] != before[1]


async def test_worker_that_hangs_before_its_first_heartbeat_is_killed_and_started_again(
    tmp_path: Path,
) -> None:
    mark = f"{tmp_path}/mark"
    body = f"if worker and not Path({mark!r}).exists(): Path({mark!r}).touch(), os.kill(os.getpid(), signal.SIGSTOP)"
    async with supervised(body, start_s=1.5) as running:
        await running.until("waits 0", "waits 1")


async def test_worker_that_takes_longer_to_start_than_the_time_out_stays() -> None:
    async with supervised("time.sleep(2)") as running:  # twice the time-out
        await running.until("waits 0")
        first = running.pids[0]
        running.process.send_signal(signal.SIGHUP)
        await running.until("hup 0")

        assert running.pids[0] == first


async def test_workers_that_were_stopped_together_with_their_parent_stay() -> None:
    async with supervised() as running:
        await running.until("waits 0", "waits 1")
        everyone = [running.process.pid, *running.pids.values()]
        for pid in everyone:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(1.5)  # longer than the time-out
        for pid in everyone:
            os.kill(pid, signal.SIGCONT)
        running.process.send_signal(signal.SIGHUP)
        await running.until("hup 0", "hup 1")
        running.process.terminate()

        assert await asyncio.wait_for(running.process.wait(), PATIENCE_S) == 0
