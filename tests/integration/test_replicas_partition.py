"""Three replicas behind a real Envoy, one of them cut off from the others but not from Envoy and the servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from support.chats import PHASE_S
from support.partition import Partition, parted_mesh, parted_server
from support.replica_pool import (
    N_HELD,
    WARM_S,
    Pool,
    judge,
    pool,
    seen_by,
    transports,
)
from support.replica_sections import Sections
from support.valkey_process import one
from support.waiting import until

pytestmark = pytest.mark.slow
APART, OTHERS = "two", ("one", "three")


@asynccontextmanager
async def parted(transport: str, folder: Path) -> AsyncGenerator[tuple[Sections, Partition]]:
    """Yield the sections of the replicas, and what can cut one of them off."""
    if transport == "mesh":
        async with parted_mesh(folder, APART, *OTHERS) as made:
            yield made
    else:
        async with one(folder) as server, parted_server(server.port, APART, *OTHERS) as made:
            yield made


@transports("mesh", among=("mesh", "server"))
async def test_replica_that_is_cut_off_fails_no_request_and_comes_back_whole(
    transport: str, tmp_path: Path
) -> None:
    async with parted(transport, tmp_path) as (sections, partition), pool(tmp_path, sections) as at:
        await at.traffic(WARM_S)
        before = await at.traffic(PHASE_S)
        # What is in flight when the cut comes must not count for ever. It loads the servers, so that caches are used less meanwhile.
        async with at.holding():
            hurt = asyncio.create_task(at.traffic(PHASE_S))
            await asyncio.sleep(PHASE_S / 3)
            partition.cut()
            during = await hurt
            await until_parted(at)
            partition.heal()
            await at.until_counted(2, N_HELD)
        await at.until_counted(2, 0)
        after = await at.traffic(PHASE_S)
        await judge(at, transport, "partition", before, during, after)


async def until_parted(at: Pool) -> None:
    """Wait until each side counts what it knows alone, and says so, and serves on."""

    async def is_parted() -> bool:
        one, two, three = [await seen_by(at.replicas[name]) for name in ("one", "two", "three")]
        return (
            one.own + two.own + three.own == N_HELD
            and (one.n_live, two.n_live, three.n_live) == (1, 0, 1)
            and (one.others, two.others, three.others) == (three.own, 0, one.own)
            and two.own > 0
        )

    await until(is_parted, what="requests in flight that each side counts alone")
    for served in at.replicas.values():
        assert await served.status("/readyz") == 200
        checks = {each["name"]: each["state"] for each in (await served.get("/v1/doctor"))["checks"]}
        assert checks["replicas-heard"] in ("warn", "fail")
