"""The snapshot file of a fleet: written atomically, and restored by the same endpoints."""

from __future__ import annotations

import asyncio
import collections
import gc
import logging
import os
import resource
import time
from array import array
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.configs.schema import SnapshotConfig
from kvatlas.configs.units import Duration
from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.fleet.atomic_file import Replacement
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.metrics import FleetMetrics, SnapshotMetrics
from kvatlas.fleet.roster import Roster, Wanted
from kvatlas.fleet.scrape.report import EngineFacts
from kvatlas.fleet.snapshots import Snapshots
from kvatlas.indexer.snapshot import MAX_FILE_BYTES
from kvatlas.indexer.tiers import TierId, TierSpec
from support.fleets import TIERS, make_fleet
from support.waiting import until

ADDRESSES = EndpointAddresses(
    serving=HostPort("10.0.0.1", 8000),
    metrics=None,
    ranks=(RankAddresses(0, None, None), RankAddresses(1, None, None)),
)
FACTS = EngineFacts(n_engines=2, block_size=4, num_gpu_blocks=200, process_start_s=1000.0)
PROMPT = array("I", range(16))


class Process:
    """The fleet and the snapshots of one process."""

    def __init__(self, fleet: Fleet, registry: CollectorRegistry, config: SnapshotConfig) -> None:
        self.fleet, self._registry = fleet, registry
        self._roster = Roster(fleet)
        self.snapshots = Snapshots(
            config,
            fleet=fleet,
            models=["m"],
            wanted=self._roster.wanted.get,
            metrics=SnapshotMetrics(registry),
        )

    async def start(self, endpoints: Mapping[str, Wanted]) -> None:
        await self.snapshots.read()
        with self.snapshots.loading():
            for name, each in endpoints.items():
                self._roster.add(name, each, saved=self.snapshots.take(name, each))
        self.snapshots.begin()

    def blocks(self, name: str, rank: int = 0) -> int:
        endpoint = self.fleet.get(name)
        assert endpoint is not None
        ledger = endpoint.ranks[rank].ledger
        assert ledger is self.fleet.atlas.ledger(name, rank)
        return ledger.residencies(TierId(0))

    def metric(self, name: str) -> float:
        lines = generate_latest(self._registry).decode().splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)


@asynccontextmanager
async def process(
    file: Path,
    *names: str,
    addresses: EndpointAddresses = ADDRESSES,
    uid: str = "",
    interval_s: float = 3600,
    tiers: tuple[TierSpec, ...] = TIERS,
) -> AsyncGenerator[Process]:
    """Run a process with these endpoints, and stop it at the end."""
    registry = CollectorRegistry()
    config = SnapshotConfig(file=str(file), interval=Duration(interval_s), max_age=Duration(2 * interval_s))
    async with make_fleet(metrics=FleetMetrics(registry), tiers=tiers) as fleet:
        running = Process(fleet, registry, config)
        try:
            await running.start(dict.fromkeys(names, Wanted(addresses, {}, uid)))
            yield running
        finally:
            await running.snapshots.stop()


def learn(running: Process, name: str) -> None:
    """Store three blocks in rank 0, and report facts from its metrics."""
    running.fleet.facts_changed(name, FACTS)
    running.fleet.atlas.ledger(name, 0).routed(running.fleet.atlas.prefix(PROMPT[:12]).keys(4))


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def content(path: Path) -> bytes:
    return path.read_bytes()


def make_sparse(path: Path, n_bytes: int) -> None:
    """Create a sparse file of that size."""
    path.parent.mkdir()
    path.touch()
    os.truncate(path, n_bytes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "kvatlas.snapshot"


@pytest.fixture
async def written(file: Path) -> Path:
    """Provide the file of a stopped process with endpoints a and b."""
    file.parent.mkdir()
    async with process(file, "a", "b") as running:
        for name in ("a", "b"):
            learn(running, name)
    return file


async def test_endpoints_go_on_from_what_the_process_before_wrote_when_it_was_stopped(
    written: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with process(written, "a", "b") as running:
        assert [running.blocks("a", rank) for rank in (0, 1)] == [3, 0]
        assert running.blocks("b") == 3
        assert 0 <= running.metric("kvatlas_snapshot_age_seconds") < 60
    assert "2 endpoint(s) restored with 6 blocks" in caplog.text
    assert "left out" not in caplog.text


async def test_file_is_readable_by_its_owner_alone_and_nothing_lies_beside_it(written: Path) -> None:
    assert mode_of(written) == 0o600
    assert names_in(written.parent) == [written.name]


async def test_endpoint_of_other_addresses_or_none_is_left_out_and_named(
    written: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with process(
        written, "a", addresses=replace(ADDRESSES, serving=HostPort("10.0.0.9", 8000))
    ) as running:
        assert running.blocks("a") == 0
    assert "left out: a (its addresses changed), b (no longer there)" in caplog.text


async def test_endpoint_that_is_scraped_elsewhere_keeps_its_blocks(written: Path) -> None:
    elsewhere = replace(ADDRESSES, metrics="http://10.0.0.1:9000/stats")
    assert elsewhere != ADDRESSES
    async with process(written, "a", addresses=elsewhere) as running:
        assert running.blocks("a") == 3


async def test_endpoint_of_another_pod_is_left_out_and_named(
    written: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with process(written, "a", "b", uid="another") as running:
        assert (running.blocks("a"), running.blocks("b")) == (0, 0)
    assert "left out: a (another pod has its name), b (another pod has its name)" in caplog.text


async def test_endpoint_is_left_out_when_it_is_found_too_late(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with make_fleet() as fleet:
        snapshots = Process(fleet, CollectorRegistry(), SnapshotConfig(file=str(written))).snapshots
        await snapshots.read()
        late = time.time() + SnapshotConfig().max_age + 1
        monkeypatch.setattr(time, "time", lambda: late)
        assert not snapshots.has("a", Wanted(ADDRESSES, {}))
        assert snapshots.take("a", Wanted(ADDRESSES, {})) is None


async def test_process_that_starts_first_says_so_and_has_no_age(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with process(tmp_path / "none", "a") as running:
        assert str(running.metric("kvatlas_snapshot_age_seconds")) == "nan"
    assert f"no snapshot at {tmp_path / 'none'}: starting empty" in caplog.text


async def test_process_start_time_of_the_process_before_tells_of_a_restart_meanwhile(written: Path) -> None:
    async with process(written, "a", "b") as running:
        running.fleet.facts_changed("a", FACTS)
        running.fleet.facts_changed("b", replace(FACTS, process_start_s=1000.5))
        assert (running.blocks("a"), running.blocks("b")) == (3, 0)


async def test_capacity_is_the_one_of_the_new_process(written: Path) -> None:
    async with process(written, "a", tiers=(replace(TIERS[0], capacity=2), *TIERS[1:])) as running:
        assert running.blocks("a") == 2


async def test_shared_tiers_and_media_nobody_configured_are_taken_up(file: Path) -> None:
    file.parent.mkdir()
    stored = [
        BlockStored((EngineHash(1),), None, PROMPT[:4], 4, MediumName(medium))
        for medium in ("GPU", "TAPE", "STORAGE")
    ]
    async with process(file, "a") as running:
        running.fleet.atlas.apply("a", 0, stored)
    async with process(file, "a") as running:
        occupancy = {row.tier: row.residencies for row in running.fleet.atlas.occupancy("a")}
    assert occupancy == {"gpu": 1, "cpu": 0, "disk": 1, "tape": 1}


async def test_file_is_written_on_an_interval(file: Path) -> None:
    file.parent.mkdir()
    async with process(file, "a", interval_s=0.01) as running:
        await until(lambda: running.metric("kvatlas_snapshot_writes_total") >= 3)
        assert running.metric("kvatlas_snapshot_bytes") == len(content(file)) > 100
        assert running.metric("kvatlas_snapshot_write_seconds_count") >= 3


async def test_process_whose_start_fails_leaves_the_file_as_it_is(written: Path) -> None:
    before = content(written)
    async with make_fleet() as fleet:
        config = SnapshotConfig(file=str(written))
        running = Process(fleet, CollectorRegistry(), config)
        await running.snapshots.read()
        with pytest.raises(RuntimeError, match="a port is taken"), running.snapshots.loading():
            raise RuntimeError("a port is taken")
        await running.snapshots.stop()
    assert gc.isenabled()
    assert content(written) == before


async def test_nothing_is_read_or_written_when_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with make_fleet() as fleet:
        running = Process(fleet, CollectorRegistry(), SnapshotConfig())
        await running.start({"a": Wanted(ADDRESSES, {})})
        await running.snapshots.stop()
    assert names_in(tmp_path) == []


async def test_failure_is_counted_each_time_said_once_and_over_with_the_next_write(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with process(file, "a", interval_s=0.01) as running:
        await until(lambda: running.metric("kvatlas_snapshot_failures_total") >= 3)
        assert caplog.text.count("cannot be written: [Errno 2] No such file or directory") == 1
        file.parent.mkdir()
        await until(lambda: running.metric("kvatlas_snapshot_writes_total") >= 1)


async def test_failure_at_the_last_step_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "in_the_way"
    (folder / "full").mkdir(parents=True)
    async with process(folder, "a") as running:
        await running.snapshots.write()
        assert running.metric("kvatlas_snapshot_failures_total") == 1
    assert names_in(tmp_path) == ["in_the_way"]


def test_file_that_a_full_disk_cut_is_removed(file: Path) -> None:
    file.parent.mkdir()
    new = Replacement(file)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            collections.deque(map(new.write, [bytes(1000)] * 100), maxlen=0)
        new.discard()  # bytes are still buffered
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names_in(file.parent) == []


async def test_remains_of_a_killed_process_are_replaced(written: Path) -> None:
    beside = written.with_name(f"{written.name}.new")
    beside.write_bytes(b"half a file")
    async with process(written, "a") as running:
        await running.snapshots.write()
    assert names_in(written.parent) == [written.name]


async def test_endpoint_that_is_removed_while_it_is_saved_is_not_saved(file: Path) -> None:
    file.parent.mkdir()
    async with process(file, "a") as running:
        (endpoint,) = running.fleet
        saving = asyncio.create_task(running.snapshots.save(endpoint))
        await asyncio.sleep(0)  # its first rank
        await running.fleet.remove("a")
        assert await saving is None


async def test_file_of_absurd_size_is_refused_unread(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_sparse(file, MAX_FILE_BYTES + 1)
    async with process(file, "a") as running:
        assert running.metric('kvatlas_snapshot_refused_total{reason="size"}') == 1
    assert f"is not used (size): it has {MAX_FILE_BYTES + 1} bytes" in caplog.text


async def test_file_that_cannot_be_read_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with process(tmp_path, "a") as running:
        assert running.metric('kvatlas_snapshot_refused_total{reason="unreadable"}') == 1
    assert "is not used (unreadable): it cannot be read: Is a directory; starting empty" in caplog.text
