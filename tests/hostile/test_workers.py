"""A worker that hangs: noticed, killed and started again, while the others serve."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from support.fleets import make_endpoint
from support.serve import ANY_PORTS, Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

TIMEOUT_S = 4


def rest_ports(served: Served, worker: int) -> list[int]:
    """Return the ports of a worker's REST listener, one for each time it was started."""
    listening = re.compile(rf"worker {worker} INFO .*: rest listens on 127\.0\.0\.1:(\d+)")
    return [int(found[1]) for line in served.log if (found := listening.search(line))]


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


async def is_ready(served: Served, port: int) -> bool:
    async with served.session.get(f"http://127.0.0.1:{port}/readyz") as answer:
        return answer.status == 200


async def beats(served: Served, port: int) -> bool:
    """Return whether the event loop of a worker had a heartbeat: before that, its parent takes it to be starting."""
    async with served.session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        return "kvatlas_loop_held_seconds_count 0.0" not in await answer.text()


async def test_frozen_worker_is_started_again_while_the_other_serves(tmp_path: Path) -> None:
    config = {
        "server": ANY_PORTS | {"workers": 2, "workerTimeout": f"{TIMEOUT_S}s"},
        "endpoints": {"static": [make_endpoint("a", events="")]},
    }
    async with serving(config, tmp_path) as served:
        await until(lambda: all(rest_ports(served, each) for each in (0, 1)), what="both workers")
        parent = served.process.pid
        first, second = children(parent)
        await until(lambda: is_ready(served, rest_ports(served, 1)[0]), what="the second worker")

        await until(lambda: beats(served, rest_ports(served, 1)[0]), what="its first heartbeat")
        os.kill(second, signal.SIGSTOP)
        await until(lambda: len(rest_ports(served, 1)) == 2, what="the second worker again")
        assert await is_ready(served, rest_ports(served, 0)[0])
        await until(lambda: is_ready(served, rest_ports(served, 1)[1]), what="the second worker to be ready")

        assert len(rest_ports(served, 0)) == 1
        assert first in children(parent)
        assert second not in children(parent)
        assert any(
            f"worker 1 has not responded for {TIMEOUT_S} s; it is killed" in line for line in served.log
        )
