"""A hostile API server: stalls, positions that expire in a circle, half lines, huge and malformed objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from support.api_server import ApiServerDouble
from support.cluster import PODS, POOLS, access, pod, pool
from support.serve import Served, serving
from support.waiting import until

pytestmark = pytest.mark.slow

N_ROUNDS = 3
FIRST = "127.0.0.1:9"
"""Address of the pod that is there all the time."""


@pytest.fixture
async def double() -> AsyncIterator[ApiServerDouble]:
    server = ApiServerDouble()
    await server.start()
    server.put(POOLS, "mine", pool())
    server.put(PODS, "first", pod(1))
    yield server
    await server.stop()


async def endpoints(served: Served) -> set[str]:
    rows = await served.get("/v1/endpoints")
    return {row["name"] for row in rows["endpoints"]}


async def served_and_follows(served: Served, double: ApiServerDouble, wanted: set[str]) -> None:
    """Heal the API server, and wait until the process has what it has; no task may have failed."""
    double.heal()
    await until(lambda: has(served, wanted), what=f"endpoints {wanted}")
    lines = (await served.metrics()).splitlines()
    assert [each for each in lines if each.startswith("kvatlas_tasks_failed_total{")] == [
        'kvatlas_tasks_failed_total{task="other"} 0.0'
    ]


async def has(served: Served, wanted: set[str]) -> bool:
    return await endpoints(served) == wanted


async def still_serves(served: Served) -> None:
    score = await served.post("/v1/score", {"model": "m", "prompt": "x"})
    assert FIRST in {each["address"] for each in score["endpoints"]}
    assert await served.status("/readyz") == 200


async def test_positions_that_expire_in_a_circle_and_half_lines_lose_nothing(
    double: ApiServerDouble, tmp_path: Path
) -> None:
    async with serving(access(double, tmp_path), tmp_path) as served:
        for number in range(N_ROUNDS):
            await until(partial(double.is_watched, PODS), what="a watch that can break")
            double.put(PODS, f"news{number}", pod(number + 6))
            # a watch with news ends the row of failures, whose delays would grow to half a minute
            await until(partial(is_there, served, f"news{number}-rank-0"), what="its news")
            n_lists = double.requests["list", PODS]
            double.put(PODS, f"pod{number}", pod(number + 2))
            double.compact()
            double.break_watches(("mid_line", "error", "reset")[number])
            double.faults.n_cut_lists = int(number == 0)
            double.faults.n_lagging = int(number == 1)
            await still_serves(served)
            await until(partial(came_again, double, n_lists), what="another list")
        come = {f"{name}{number}-rank-0" for name in ("news", "pod") for number in range(N_ROUNDS)}
        await served_and_follows(served, double, {"first-rank-0", *come})


async def test_silence_ends_when_the_server_answers_again(double: ApiServerDouble, tmp_path: Path) -> None:
    async with serving(access(double, tmp_path), tmp_path) as served:
        double.faults.stalled = True
        double.faults.slow_lists = {PODS.rpartition("/")[2]}
        double.stall_connections()
        double.put(PODS, "late", pod(2))
        double.break_watches("reset")
        await asyncio.gather(*(still_serves(served) for _ in range(20)))
        await served_and_follows(served, double, {"first-rank-0", "late-rank-0"})


ODD: dict[str, dict[str, object]] = {
    "huge": {"spec": {"x": "y" * (8 * 2**20)}},
    "labelled": {"metadata": {"labels": {f"l{n}": "v" for n in range(50_000)}}},
    "mistyped": {"status": {"podIP": 7, "conditions": "no"}},
    "nowhere": {"status": {"podIP": "not an address\n", "conditions": []}},
}


async def test_odd_pods_cost_themselves_alone(double: ApiServerDouble, tmp_path: Path) -> None:
    async with serving(access(double, tmp_path), tmp_path) as served:
        for name, body in ODD.items():
            double.put(PODS, name, {"metadata": {"labels": {"app": "a"}}, **pod(9)} | body)
        double.put(PODS, "next", pod(2))
        await still_serves(served)
        await until(lambda: is_there(served, "next-rank-0"), what="the pod after them")
        await still_serves(served)
        for name in ODD:
            double.delete(PODS, name)
        await served_and_follows(served, double, {"first-rank-0", "next-rank-0"})


def came_again(double: ApiServerDouble, n_lists: int) -> bool:
    return double.requests["list", PODS] > n_lists


async def is_there(served: Served, name: str) -> bool:
    return name in await endpoints(served)
