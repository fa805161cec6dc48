"""Snapshots of publishers over real sockets: late joins, losses, restarts, and publishers that have none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry

from kvatlas.configs.endpoints import EndpointAddresses
from kvatlas.events.errors import FAILED
from kvatlas.events.stream import Trust
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.metrics import FleetMetrics
from kvatlas.indexer.draft import RankDraft
from kvatlas.sim.held_port import HeldPort
from support.fleets import make_fleet
from support.leaks import no_new_tasks
from support.snapshot_publisher import CPU, Source, held, removed, source, stored
from support.waiting import until

PROMPTS = range(8)
LIFE = b"the id of the publisher"
"""Stands for the id in replies."""


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def fleet(registry: CollectorRegistry) -> AsyncIterator[Fleet]:
    async with make_fleet(metrics=FleetMetrics(registry)) as fleet:
        yield fleet


def fill(engine: Source) -> None:
    """Publish a history with removals in both tiers and blocks that are there twice."""
    for prompt in PROMPTS:
        engine.publish(stored(prompt, 0, 5))
        engine.publish(stored(prompt, 5, 12), stored(prompt, 0, 8, medium=CPU))
    engine.publish(stored(0, 0, 2), removed(1, *range(12)))
    engine.publish(removed(2, 11, 10, 9), removed(3, 0, medium=CPU), removed(0, 0))


def trust(fleet: Fleet) -> Trust | None:
    endpoint = fleet.get("a")
    return endpoint.trust if endpoint is not None else None


async def agrees(fleet: Fleet, engine: Source) -> None:
    """Wait until the fleet trusts its view, which must be what the publisher's whole stream leads to."""
    engine.told(fleet.atlas)
    await until(lambda: trust(fleet) is Trust.LIVE, what="full trust")
    await until(
        lambda: held(fleet.atlas, "a", PROMPTS) == held(fleet.atlas, "all", PROMPTS), what="agreement"
    )


def outcomes(registry: CollectorRegistry, outcome: str) -> float:
    return registry.get_sample_value("kvatlas_event_snapshots_total", {"outcome": outcome}) or 0


@pytest.mark.parametrize("replays", [False, True], ids=["no_replay", "short_replay"])
async def test_late_joiner_knows_everything_when_the_publisher_has_snapshots(
    fleet: Fleet, registry: CollectorRegistry, *, replays: bool
) -> None:
    async with source(history=3) as engine:
        fill(engine)
        fleet.add("a", engine.addresses(replays=replays), {})
        await until(lambda: outcomes(registry, "applied"))
        engine.publish(stored(4, 0, 1), removed(4, 11))
        await agrees(fleet, engine)
        assert outcomes(registry, "applied") == 1


async def test_lost_batch_without_replay_is_mended_while_the_old_state_serves(fleet: Fleet) -> None:
    async with source() as engine:
        fleet.add("a", engine.addresses(), {})
        await until(lambda: trust(fleet) is not Trust.DARK)  # heartbeats come also from an idle engine
        fill(engine)
        await agrees(fleet, engine)
        engine.publish(removed(5, 11), is_lost=True)
        engine.publish(stored(6, 0, 1))
        await until(lambda: trust(fleet) is not Trust.LIVE)
        assert held(fleet.atlas, "a", [7])[-1] == {"gpu": 12, "cpu": 8, "disk": 0}
        await agrees(fleet, engine)


async def test_restart_is_known_by_the_id_at_once(fleet: Fleet, registry: CollectorRegistry) -> None:
    port = HeldPort()
    async with source(port=port.number) as engine:
        fleet.add("a", engine.addresses(), {})
        await until(lambda: trust(fleet) is not Trust.DARK)
        fill(engine)
        await agrees(fleet, engine)
    fleet.atlas.remove("all")
    async with source(port=port.number) as engine:
        await until(lambda: held(fleet.atlas, "a", PROMPTS)[:2] == [0, 0], what="an empty state")
        engine.publish(stored(0, 0, 3))
        await until(lambda: held(fleet.atlas, "a", [0])[0] == 3)


async def test_publisher_that_lost_its_record_leaves_partial_trust(
    fleet: Fleet, registry: CollectorRegistry
) -> None:
    async with source() as engine:
        fill(engine)
        assert engine.publisher.recorder is not None
        engine.publisher.recorder.has_failed = True
        fleet.add("a", engine.addresses(), {})
        await until(lambda: outcomes(registry, "unavailable"))
        assert trust(fleet) is Trust.PARTIAL
        engine.publish(stored(9, 0, 4))
        await until(lambda: held(fleet.atlas, "a", [9])[-1] == {"gpu": 4, "cpu": 0, "disk": 0})


@asynccontextmanager
async def answering(engine: Source, *replies: list[bytes]) -> AsyncGenerator[EndpointAddresses]:
    """Provide the engine's addresses with a snapshot socket that gives these replies, and then none."""
    context = zmq.asyncio.Context()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")

    async def serve() -> None:
        for reply in replies:
            identity, *_ = await router.recv_multipart()
            await router.send_multipart([identity, b"", *reply])  # pyright: ignore[reportUnknownMemberType]

    task = asyncio.create_task(serve())
    addresses = engine.addresses()
    (rank,) = addresses.ranks
    try:
        yield replace(addresses, ranks=(replace(rank, snapshots=f"tcp://127.0.0.1:{port}"),))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(linger=0)


def numbered(last_seq: int) -> bytes:
    return last_seq.to_bytes(8, "big", signed=True)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        pytest.param([b"?"], "malformed", id="no_reply_of_a_publisher"),
        pytest.param([numbered(100), b"x" * 16], "other_life", id="other_life"),
        pytest.param([numbered(0), LIFE], "outdated", id="outdated"),
        pytest.param([numbered(100), LIFE, b"\xc1"], "malformed", id="not_msgpack"),
        pytest.param([numbered(100), LIFE, *[b""] * 70_000], "too_large", id="too_many_parts"),
    ],
)
async def test_reply_that_cannot_be_used_changes_nothing(
    fleet: Fleet, registry: CollectorRegistry, reply: list[bytes], outcome: str
) -> None:
    async with source() as engine:
        fill(engine)
        life = engine.publisher.life
        async with answering(engine, [life if part is LIFE else part for part in reply]) as addresses:
            fleet.add("a", addresses, {})
            await until(lambda: trust(fleet) is not Trust.DARK)
            engine.publish(stored(9, 0, 4))
            await until(lambda: outcomes(registry, outcome))
            engine.publish(stored(9, 4, 6))
            await until(lambda: held(fleet.atlas, "a", [9])[-1] == {"gpu": 6, "cpu": 0, "disk": 0})


async def test_bug_costs_one_snapshot_and_the_next_one_is_applied(
    fleet: Fleet, registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[BaseException] = []

    def fail(*_: object, **__: object) -> None:
        monkeypatch.undo()
        raise LookupError("a bug")

    monkeypatch.setattr(RankDraft, "adopt", fail)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    async with source() as engine:
        fill(engine)
        fleet.add("a", engine.addresses(), {})
        await until(lambda: outcomes(registry, FAILED), what="the failure")
        assert trust(fleet) is Trust.PARTIAL
        engine.publish(stored(9, 0, 4))
        await until(lambda: outcomes(registry, "applied"), what="the next snapshot")
        await agrees(fleet, engine)
    loop.set_exception_handler(None)
    assert [type(each) for each in failures] == [LookupError]


async def test_endpoint_can_be_removed_while_its_snapshot_does_not_come(fleet: Fleet) -> None:
    async with source() as engine, answering(engine) as addresses:
        fill(engine)
        fleet.add("a", addresses, {})
        await until(lambda: trust(fleet) is Trust.REPLAYING)
        async with no_new_tasks():
            await fleet.remove("a")
    assert fleet.get("a") is None
