"""A hostile environment: clocks that jump, a full disk, no descriptors, little memory. Requests are served, and all recovers."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
import time
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from support.api_server import ApiServerDouble
from support.cluster import PODS, POOLS, access, pod, pool
from support.ext_proc import BUFFERED
from support.hostile import Target, attacked
from support.publishing import stored
from support.recording import player
from support.serve import Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

FAKETIME = Path(sys.executable).parent / "libfaketimeMT.so.1"


def limit(served: Served, kind: int, number: int) -> None:
    """Set a soft limit of the running process; its hard limit stays."""
    _, hard = resource.prlimit(served.process.pid, kind)
    resource.prlimit(served.process.pid, kind, (number if number >= 0 else hard, hard))


async def value(served: Served, name: str) -> float:
    """Return a metric without labels."""
    lines = (await served.metrics()).splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


async def serves(served: Served) -> bool:
    score: dict[str, Any] = await served.post("/v1/score", {"model": "m", "prompt": "x"})
    return bool(score["endpoints"]) and await served.status("/readyz") == 200


@pytest.mark.skipif(
    not FAKETIME.exists(), reason="libfaketime is missing: `make test-programs` gets it from Debian"
)
async def test_clock_that_jumps_by_minutes_changes_nothing(tmp_path: Path) -> None:
    double, clock = ApiServerDouble(), tmp_path / "clock"
    clock.write_text("+0")
    environment = {
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    await double.start()
    double.put(POOLS, "mine", pool())
    try:
        async with player() as engine:
            port = engine.events.rpartition(":")[2]
            double.put(PODS, "a", pod(1, events_port=port, replay_port=""))
            election = {"enabled": True, "leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "100ms"}
            config = access(double, tmp_path) | {
                "leaderElection": election,
                "snapshot": {"file": str(tmp_path / "snapshot"), "interval": "200ms"},
            }
            async with serving(config, tmp_path, environment=environment) as served:
                for seconds in ("+900", "-900", "+0"):
                    clock.write_text(seconds)
                    await until(partial(is_ahead, served, int(seconds)), what=f"the clock at {seconds} s")
                    writes = await value(served, "kvatlas_snapshot_writes_total")
                    await engine.publish(stored(len(engine.history), range(64)))
                    await until(lambda: has_blocks(served), what=f"events at {seconds} s")
                    await until(partial(wrote_after, served, writes), what=f"snapshots at {seconds} s")
                    assert await serves(served)
                transitions = [each for each in served.log if "lead" in each and "lost" in each]
                n_failed = (await served.metrics()).count("\nkvatlas_tasks_failed_total{")
    finally:
        await double.stop()

    assert transitions == []
    assert n_failed == 1


async def is_ahead(served: Served, seconds: int) -> bool:
    """Return whether the clock of the process, as in the `Date` of its answers, is ahead of the true one by `seconds`."""
    async with served.session.get(f"http://127.0.0.1:{served.ports['rest']}/healthz") as answer:
        shown = parsedate_to_datetime(answer.headers["date"]).timestamp()
    return abs(shown - time.time() - seconds) < 60


async def has_blocks(served: Served) -> bool:
    rows = (await served.get("/v1/endpoints"))["endpoints"]
    return bool(sum(tier["residencies"] for row in rows for tier in row["tiers"]) > 0)


async def wrote_after(served: Served, writes: float) -> bool:
    return await value(served, "kvatlas_snapshot_writes_total") > writes


async def test_full_disk_costs_files_alone_until_there_is_space(tmp_path: Path) -> None:
    file = tmp_path / "snapshot"
    snapshot, recorder = {"file": str(file), "interval": "100ms"}, {"folder": str(tmp_path / "traces")}
    async with attacked(tmp_path, snapshot=snapshot, recorder=recorder) as target:
        served = target.served
        await until(file.exists, what="a snapshot")
        limit(served, resource.RLIMIT_FSIZE, 0)  # each write fails, as on a full disk
        await completion(target, b"some words that are recorded")

        async def fails() -> bool:
            failures = await value(served, "kvatlas_snapshot_failures_total")
            return failures >= 2 and await value(served, "kvatlas_recorder_failing") == 1

        await until(fails, what="files that cannot be written")
        assert await serves(served)
        assert await asyncio.to_thread(file.read_bytes)
        writes = await value(served, "kvatlas_snapshot_writes_total")
        limit(served, resource.RLIMIT_FSIZE, -1)
        await completion(target, b"other words that are recorded")

        async def recovers() -> bool:
            return await wrote_after(served, writes) and await value(served, "kvatlas_recorder_failing") == 0

        await until(recovers, what="files with space")
        await until(lambda: not any(tmp_path.glob("snapshot?*")), what="no file that was begun")

    for subject in ("snapshot", "the trace"):
        assert sum(subject in line and "cannot be written" in line for line in served.log) == 1


async def test_no_descriptors_left_keeps_open_connections_and_recovers(tmp_path: Path) -> None:
    async with attacked(tmp_path) as target:
        served = target.served
        n_open = len(await asyncio.to_thread(lambda: list(Path(f"/proc/{served.process.pid}/fd").iterdir())))
        limit(served, resource.RLIMIT_NOFILE, n_open + 4)
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(40):
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection("127.0.0.1", served.ports["rest"])
                    stack.callback(writer.close)
            for _ in range(20):
                await completion(target, b"short")
        limit(served, resource.RLIMIT_NOFILE, -1)
        await until(lambda: is_ready_anew(served), what="new connections")

    assert target.replies == {"request_body"}


async def is_ready_anew(served: Served) -> bool:
    """Return whether a new connection is served."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.ports["rest"])
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                answer: bytes = await reader.readline()
                return b" 200 " in answer
            finally:
                writer.close()
    return False


async def completion(target: Target, prompt: bytes) -> None:
    """Send a completion with a prompt of plain letters."""
    await target.send_body("/v1/completions", b'{"model":"m","prompt":"%s"}' % prompt, config=BUFFERED)


async def test_requests_are_served_in_2_gib(tmp_path: Path) -> None:
    rng = Random(21)
    words = [bytes(rng.choices(b"abcdefgh", k=7)) for _ in range(1000)]
    async with attacked(tmp_path) as target:
        limit(target.served, resource.RLIMIT_DATA, 2 * 2**30)
        prompts = [b" ".join(rng.choices(words, k=2**19)) for _ in range(12)]  # 4 MiB each
        await asyncio.gather(*(completion(target, each) for each in prompts))
        await target.look()
        peak = await target.total("process_resident_memory_bytes")
        n_failed = await target.total("kvatlas_tasks_failed_total")

    assert target.replies == {"request_body"}
    assert n_failed == 0
    assert peak < 2 * 2**30
