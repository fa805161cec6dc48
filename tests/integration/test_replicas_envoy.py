"""Three replicas behind a real Envoy, in front of simulated servers, while one of them or their server is hurt."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from support.chats import PHASE_S, Tally
from support.faketime import Clock, needs_faketime
from support.replica_pool import NAMES, WARM_S, judge, pool, sections_of, transports
from support.serve import GIVES_NOTICE

pytestmark = pytest.mark.slow


@transports("mesh")
async def test_killed_replica_fails_no_request_and_leaves_no_booking(transport: str, tmp_path: Path) -> None:
    async with (
        sections_of(transport, tmp_path) as (sections, _),
        pool(tmp_path, sections, mortal="two") as at,
    ):
        await at.traffic(WARM_S)
        before = await at.traffic(PHASE_S)
        hurt = asyncio.create_task(at.traffic(PHASE_S))
        await asyncio.sleep(PHASE_S / 3)
        at.replicas["two"].process.send_signal(signal.SIGKILL)
        at.gone.add("two")
        during = await hurt
        after = await at.traffic(PHASE_S)
        await judge(at, transport, "kill -9", before, during, after, n_live=1)


@transports("server")
async def test_frozen_replica_fails_no_request_and_comes_back_whole(transport: str, tmp_path: Path) -> None:
    async with sections_of(transport, tmp_path) as (sections, _), pool(tmp_path, sections) as at:
        await at.traffic(WARM_S)
        before = await at.traffic(PHASE_S)
        hurt = asyncio.create_task(at.traffic(PHASE_S))
        await asyncio.sleep(PHASE_S / 3)
        at.replicas["two"].process.send_signal(signal.SIGSTOP)
        try:
            during = await hurt
        finally:
            at.replicas["two"].process.send_signal(signal.SIGCONT)
        await at.in_use(3)
        after = await at.traffic(PHASE_S)
        await judge(at, transport, "freeze", before, during, after)


@transports()
async def test_rolling_update_of_all_fails_no_request(transport: str, tmp_path: Path) -> None:
    async with (
        sections_of(transport, tmp_path) as (sections, _),
        pool(tmp_path, sections, ends=GIVES_NOTICE) as at,
    ):
        await at.traffic(WARM_S)
        before = await at.traffic(PHASE_S)
        is_over = asyncio.Event()

        async def go_on() -> Tally:
            whole = Tally()
            while not is_over.is_set():
                each = await at.traffic(1.0)
                whole.statuses += each.statuses
                whole.prompt_tokens += each.prompt_tokens
                whole.cached_tokens += each.cached_tokens
                whole.seconds += each.seconds
                whole.undecided += each.undecided
            return whole

        going = asyncio.create_task(go_on())
        for name in NAMES:
            port = at.replicas[name].ports["extProc"]
            await at.end(name)
            await at.start(name, port)
            await at.in_use(3)
        is_over.set()
        during = await going
        after = await at.traffic(PHASE_S)
        await judge(at, transport, "rolling update", before, during, after)


@transports(among=("server", "cluster"))
async def test_server_that_is_gone_and_comes_back_empty_fails_no_request(
    transport: str, tmp_path: Path
) -> None:
    gone_s = float(os.environ.get("KVATLAS_REPLICA_GONE_S", "5"))
    async with sections_of(transport, tmp_path) as (sections, servers), pool(tmp_path, sections) as at:
        await at.traffic(WARM_S)
        before = await at.traffic(PHASE_S)
        used = [each for each in servers if await each.call("PUBSUB", "SHARDCHANNELS")]
        hurt = asyncio.create_task(at.traffic(gone_s))
        await used[0].kill()
        during = await hurt
        if transport == "server":
            await used[0].start()
        after = await at.traffic(PHASE_S)
        await judge(at, transport, "server killed", before, during, after)


@needs_faketime
@transports(among=("mesh", "server"))
async def test_clock_of_one_host_that_jumps_fails_no_request(transport: str, tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    async with (
        sections_of(transport, tmp_path) as (sections, _),
        pool(tmp_path, sections, environments={"two": clock.environment}) as at,
    ):
        await at.traffic(WARM_S)
        before = await at.traffic(PHASE_S)
        hurt = asyncio.create_task(at.traffic(PHASE_S))
        for seconds in (10_800, -10_800):
            await asyncio.sleep(PHASE_S / 3)
            clock.jump(seconds)
        during = await hurt
        after = await at.traffic(PHASE_S)
        await judge(at, transport, "clock jumps by 3 hours", before, during, after)
