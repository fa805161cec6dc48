"""Real processes that decide as one."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.faketime import Clock, needs_faketime
from support.gateway import ADDRESSES, FLEET, Gateway, asking
from support.replica_sections import mesh
from support.serve import Served, serving
from support.waiting import until


@asynccontextmanager
async def replica(
    folder: Path,
    section: dict[str, Any],
    *,
    killed: bool = False,
    environment: Mapping[str, str] | None = None,
    **config: Any,
) -> AsyncGenerator[Gateway]:
    """Run one replica, whose picks avoid endpoints with requests in flight; it is killed by the end if that is so."""
    own = folder / str(section["name"])
    own.mkdir(exist_ok=True)
    plugins = [{"type": "active-request-scorer"}]
    killed_by = signal.SIGKILL if killed else None
    sections = {"endpoints": FLEET, "replicas": section, "plugins": plugins} | config
    async with (
        serving(sections, own, killed_by=killed_by, environment=environment) as served,
        asking(served) as running,
    ):
        yield running


async def siblings(served: Served, state: str) -> float:
    """Return the number of siblings in that state."""
    return value(await served.metrics(), f'kvatlas_replica_siblings{{state="{state}"}}')


def value(metrics: str, series: str) -> float:
    """Return the value of a series, 0 if there is none."""
    found = [line for line in metrics.splitlines() if line.startswith(f"{series} ")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


async def until_siblings(gate: Gateway, state: str, count: int) -> None:
    async def there() -> bool:
        return await siblings(gate.served, state) == count

    await until(there, what=f"{count} siblings {state}")


def sees(gate: Gateway, endpoint: str, requests: int) -> Callable[[], Awaitable[bool]]:
    """Return whether a replica counts so many requests in flight at the endpoint, of all replicas."""

    async def check() -> bool:
        found = await gate.served.post("/v1/score", {"model": "m", "prompt": "x"})
        (raw,) = (each["scores"][0]["raw"] for each in found["endpoints"] if each["name"] == endpoint)
        return bool(raw == requests)

    return check


async def test_replicas_add_up_what_they_have_in_flight_and_drop_what_a_killed_one_had(
    tmp_path: Path,
) -> None:
    sections = mesh(tmp_path, "one", "two")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica(tmp_path, sections["one"]))
        second = await stack.enter_async_context(replica(tmp_path, sections["two"], killed=True))
        await until_siblings(first, "live", 1)
        await until_siblings(second, "live", 1)

        sent = [await second.request() for _ in range(3)]
        for name in ADDRESSES.values():
            n_there = sum(each.endpoint == name for each in sent)
            await until(sees(first, name, n_there), what=f"{n_there} requests at {name}")
        await sent[0].end()
        await until(
            sees(first, sent[0].endpoint, sum(each.endpoint == sent[0].endpoint for each in sent[1:])),
            what="its end",
        )

        second.served.process.send_signal(signal.SIGKILL)
        for name in ADDRESSES.values():
            await until(sees(first, name, 0), what=f"nothing at {name}")
        assert await siblings(first.served, "silent") == 1
        assert await first.served.status("/readyz") == 200


async def test_frozen_replica_is_left_out_and_comes_back_whole(tmp_path: Path) -> None:
    sections = mesh(tmp_path, "one", "two")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(replica(tmp_path, sections["one"]))
        second = await stack.enter_async_context(replica(tmp_path, sections["two"]))
        await until_siblings(first, "live", 1)
        sent = await second.request()
        await until(sees(first, sent.endpoint, 1), what="its request")

        second.served.process.send_signal(signal.SIGSTOP)
        await until(sees(first, sent.endpoint, 0), what="nothing of a silent replica")
        second.served.process.send_signal(signal.SIGCONT)
        await until(sees(first, sent.endpoint, 1), what="its request again")
        await sent.end()
        await until(sees(first, sent.endpoint, 0), what="its end")


async def test_replica_that_still_finishes_requests_agrees_to_changes(tmp_path: Path) -> None:
    sections = mesh(tmp_path, "one", "two")
    async with (
        replica(tmp_path, sections["one"]) as first,
        replica(tmp_path, sections["two"]) as second,
    ):
        await until_siblings(first, "live", 1)
        sent = await second.request()
        second.served.process.send_signal(signal.SIGTERM)

        async def is_draining() -> bool:
            return await second.served.status("/readyz") == 503

        await until(is_draining, what="the end of readiness")
        changed = await first.served.put("/v1/weights", {"active-request-scorer": 5})
        await sent.end()
        assert await second.served.process.wait() == 0  # before a second signal, which would end it at once

        assert "error" not in changed
        behind = {each["name"]: each["problem"] for each in changed["replicas"]}
        assert behind == {"one": None, "two": None}


@pytest.mark.slow
@needs_faketime
async def test_clock_of_one_replica_that_jumps_by_hours_changes_nothing(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    # Only the clock can be off by so much, and no machine so slow.
    sections = {name: {**each, "silentAfter": "60s"} for name, each in mesh(tmp_path, "one", "two").items()}
    async with (
        replica(tmp_path, sections["one"]) as first,
        replica(tmp_path, sections["two"], environment=clock.environment) as second,
    ):
        await until_siblings(first, "live", 1)
        await until_siblings(second, "live", 1)
        for jump in (10800, -10800):
            clock.jump(jump)
            for here, there in ((first, second), (second, first)):
                sent = await here.request()
                await until(sees(there, sent.endpoint, 1), what="a request")
                await sent.end()
                await until(sees(there, sent.endpoint, 0), what="its end")
        for each in (first, second):
            assert value(await each.served.metrics(), "kvatlas_replica_silenced_total") == 0


@pytest.mark.slow
async def test_replica_that_ends_takes_leave_and_its_next_life_is_another(tmp_path: Path) -> None:
    sections = mesh(tmp_path, "one", "two")
    async with replica(tmp_path, sections["one"]) as first:
        async with replica(tmp_path, sections["two"]):
            await until_siblings(first, "live", 1)
        await until_siblings(first, "silent", 1)
        async with replica(tmp_path, sections["two"]) as again:
            await until_siblings(first, "live", 1)
            sent = await again.request()
            await until(sees(first, sent.endpoint, 1), what="a request of the next life")
            await sent.end()


async def test_replica_of_another_seed_is_refused_by_name(tmp_path: Path) -> None:
    sections = mesh(tmp_path, "one", "two")
    async with (
        replica(tmp_path, sections["one"]) as first,
        replica(tmp_path, sections["two"], index={"hashSeed": 7}) as second,
    ):
        await until_siblings(first, "refused", 1)
        sent = await second.request()
        assert await sees(first, sent.endpoint, 0)()
        await sent.end()
        assert value(await first.served.metrics(), 'kvatlas_replica_refused_total{reason="keys"}') > 0
