"""A process that starts with the snapshot of another one, in one event loop."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.app.replicas.warm import LETTERS, WarmStarts
from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.configs.schema import SnapshotConfig
from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.metrics import SnapshotMetrics
from kvatlas.fleet.roster import Wanted
from kvatlas.fleet.snapshots import Snapshots
from kvatlas.indexer.tiers import TierId
from support.fleets import make_fleet
from support.linked_replicas import LinkedReplicas

ADDRESSES = EndpointAddresses(
    serving=HostPort("10.0.0.1", 8000), metrics=None, ranks=(RankAddresses(0, None, None),)
)
WANTED = {"a": Wanted(ADDRESSES, {}), "b": Wanted(ADDRESSES, {})}
PROMPT = array("I", range(64))


@dataclass
class Process:
    fleet: Fleet
    snapshots: Snapshots
    warm: WarmStarts

    def add(self, name: str) -> None:
        wanted = WANTED[name]
        self.fleet.add(name, wanted.addresses, wanted.labels, saved=self.snapshots.take(name, wanted))

    def blocks(self, name: str) -> int:
        return self.fleet.atlas.ledger(name, 0).residencies(TierId(0))


@asynccontextmanager
async def process(
    network: LinkedReplicas, name: str, *, models: tuple[str, ...] = ("m",), file: Path | None = None
) -> AsyncGenerator[Process]:
    linked = network.add(name)
    async with make_fleet() as fleet:
        snapshots = Snapshots(
            SnapshotConfig(file=str(file) if file is not None else ""),
            fleet=fleet,
            models=models,
            wanted=WANTED.get,
            metrics=SnapshotMetrics(CollectorRegistry()),
        )
        warm = WarmStarts(
            snapshots,
            replica=linked.id,
            siblings=linked.living,
            post=lambda to, payload: linked.post(LETTERS, to, payload),
        )
        linked.letters[LETTERS] = warm
        linked.start()
        giving = asyncio.create_task(warm.give())
        try:
            yield Process(fleet, snapshots, warm)
        finally:
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)


def learn(running: Process, name: str, n_blocks: int) -> None:
    running.add(name)
    running.fleet.atlas.ledger(name, 0).routed(running.fleet.atlas.prefix(PROMPT[: 4 * n_blocks]).keys(4))


async def test_process_that_starts_has_the_blocks_of_its_sibling() -> None:
    async with LinkedReplicas() as network, process(network, "first") as first:
        learn(first, "a", 3)
        learn(first, "b", 7)
        first.warm.ready()
        async with process(network, "second") as second:
            given = await second.warm.take()
            assert given is not None
            await second.snapshots.read(given[1], giver=given[0])
            for name in WANTED:
                second.add(name)
            assert [second.blocks(name) for name in WANTED] == [3, 7]
            families = {family.name: family for family in second.warm.families()}
            assert families["kvatlas_replica_snapshot_bytes"].samples[0].value > 0


async def test_token_ids_stay_in_the_process_that_gives_its_snapshot(tmp_path: Path) -> None:
    secret = array("I", [7001, 7002, 7003, 7004])
    known = BlockStored((EngineHash(1),), parent=None, tokens=PROMPT[:4], block_size=4)
    orphan = BlockStored((EngineHash(5),), parent=EngineHash(4), tokens=secret, block_size=4)
    file = tmp_path / "kvatlas.snapshot"
    async with LinkedReplicas() as network, process(network, "first", file=file) as first:
        first.add("a")
        first.fleet.atlas.apply("a", 0, [known, orphan])
        assert first.fleet.atlas.ledger("a", 0).hashes.n_parked == 1
        first.warm.ready()
        async with process(network, "second") as second:
            given = await second.warm.take()
            assert given is not None
            (saved,) = given[1].endpoints.values()
            assert saved.ranks[0].books.hashes.parked == ()
            await second.snapshots.read(given[1], giver=given[0])
            second.add("a")
            assert second.blocks("a") == 1
        kept = b"".join([piece async for piece in first.snapshots.pieces(0.0)])
        sent = b"".join([piece async for piece in first.snapshots.pieces(0.0, with_tokens=False)])
        assert (secret.tobytes() in kept, secret.tobytes() in sent) == (True, False)


async def test_snapshot_of_another_model_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with LinkedReplicas() as network, process(network, "first", models=("other",)) as first:
        learn(first, "a", 3)
        first.warm.ready()
        async with process(network, "second") as second:
            assert await second.warm.take() is None
    assert "is of model other, and model.names is m" in caplog.text


async def test_own_file_is_used_for_endpoints_that_the_sibling_does_not_have(tmp_path: Path) -> None:
    file = tmp_path / "kvatlas.snapshot"
    async with LinkedReplicas() as network:
        async with process(network, "earlier", file=file) as earlier:
            learn(earlier, "a", 5)
            learn(earlier, "b", 6)
            await earlier.snapshots.write()
        del network.replicas["earlier"]
        async with process(network, "first") as first:
            learn(first, "a", 3)
            first.warm.ready()
            async with process(network, "second", file=file) as second:
                given = await second.warm.take()
                assert given is not None
                await second.snapshots.read(given[1], giver=given[0])
                for name in WANTED:
                    second.add(name)
                assert [second.blocks(name) for name in WANTED] == [3, 6]


async def test_snapshot_that_cannot_be_made_ends_the_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    has_failed = asyncio.Event()

    async def fail(*_: object, **__: object) -> AsyncGenerator[bytes]:
        yield b"begins"
        has_failed.set()
        raise ZeroDivisionError

    async with LinkedReplicas() as network, process(network, "first") as first:
        monkeypatch.setattr(first.snapshots, "pieces", fail)
        first.warm.ready()
        async with process(network, "second") as second:
            taking = asyncio.create_task(second.warm.take())
            await has_failed.wait()  # before the taker has given it up
            given = next(
                each for each in first.warm.families() if each.name == "kvatlas_replica_snapshots_given"
            )
            assert {each.labels["outcome"]: each.value for each in given.samples} == {"given": 0, "broken": 1}
            assert await taking is None
