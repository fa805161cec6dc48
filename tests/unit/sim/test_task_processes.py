"""Tasks in several processes: results, and what is left of them when their owner is interrupted or dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvatlas.sim.task_processes import results_of

OWNER = """
import socket, sys
from functools import partial
from kvatlas.sim.task_processes import results_of

def endless(port):
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.recv(1)

if __name__ == "__main__":
    with results_of([partial(endless, int(sys.argv[1]))] * 20, jobs=2) as results:
        print(list(results))
"""
"""Twenty tasks in two processes. Each says by a connection that it runs, and never ends."""


RESULTS = """
from functools import partial
from kvatlas.sim.task_processes import results_of

if __name__ == "__main__":
    with results_of([partial(divmod, number, 3) for number in range(7)], jobs=2) as results:
        print(sorted(results))
    try:
        with results_of([partial(divmod, 1, number) for number in (1, 0, 1)], jobs=2) as results:
            list(results)
    except ZeroDivisionError as error:
        print(error)
"""


def test_every_task_has_its_result_and_errors_are_raised(tmp_path: Path) -> None:
    script = tmp_path / "results.py"
    script.write_text(RESULTS)

    found = subprocess.run(
        [sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=120
    ).stdout.splitlines()

    expected = [(number, divmod(number, 3)) for number in range(7)]
    assert found == [str(expected), "integer division or modulo by zero"]


def test_one_job_runs_the_tasks_in_this_process() -> None:
    with results_of([os.getpid, os.getpid], jobs=1) as results:
        assert list(results) == [(0, os.getpid()), (1, os.getpid())]


@pytest.mark.parametrize(
    ("kill", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="ctrl_c"),
        pytest.param(os.kill, signal.SIGINT, id="owner_interrupted"),
        pytest.param(os.kill, signal.SIGTERM, id="owner_terminated"),
        pytest.param(os.kill, signal.SIGKILL, id="owner_killed"),
    ],
)
def test_processes_end_at_once_with_their_owner(
    kill: Callable[[int, int], None], number: signal.Signals, tmp_path: Path
) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(60)
        owner = stack.enter_context(
            subprocess.Popen(
                [sys.executable, str(script), str(listener.getsockname()[1])],
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        stack.callback(owner.kill)
        running = [stack.enter_context(listener.accept()[0]) for _ in range(2)]

        kill(owner.pid, number)

        for each in running:
            each.settimeout(60)
            assert each.recv(1) == b""
        _, errors = owner.communicate(timeout=60)
        assert owner.returncode == -number
        assert errors.count("Traceback") == (number == signal.SIGINT)
        listener.settimeout(0)
        with pytest.raises(BlockingIOError):
            listener.accept()
