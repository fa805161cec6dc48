"""Discovered endpoints in the fleet: what stays of a pod, and what a snapshot restores."""

from __future__ import annotations

from array import array
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from kvatlas.configs.schema import SnapshotConfig
from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.events.tasks import keep
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.kubernetes.discovered import DiscoveredEndpoints
from kvatlas.fleet.kubernetes.tasks import end
from kvatlas.fleet.metrics import SnapshotMetrics
from kvatlas.fleet.roster import Wanted, wanted_endpoints
from kvatlas.fleet.snapshots import Snapshots
from support.fleets import make_endpoint, make_fleet, with_endpoints
from support.waiting import until


def make_discovered(
    fleet: Fleet, snapshots: Snapshots | None = None, on_change: Callable[[], None] = lambda: None
) -> DiscoveredEndpoints:
    snapshots = snapshots or make_snapshots(SnapshotConfig(), fleet, {})
    return DiscoveredEndpoints(fleet, snapshots, on_change=on_change)


@asynccontextmanager
async def running(discovered: DiscoveredEndpoints) -> AsyncGenerator[DiscoveredEndpoints]:
    """Run its background work."""
    tasks = [keep(discovered.run, "discovered")]
    try:
        yield discovered
    finally:
        await end(tasks)


def make_snapshots(config: SnapshotConfig, fleet: Fleet, saved: Mapping[str, Wanted]) -> Snapshots:
    return Snapshots(
        config, fleet=fleet, models=["m"], wanted=saved.get, metrics=SnapshotMetrics(CollectorRegistry())
    )


def found(name: str, number: int = 1, *, uid: str = "u", **labels: str) -> dict[str, Wanted]:
    """Return what discovery reports for one pod."""
    wanted = wanted_endpoints(with_endpoints(make_endpoint(name, number)))[name]
    return {name: Wanted(wanted.addresses, labels, uid)}


def held(fleet: Fleet, name: str) -> int:
    return fleet.atlas.occupancy(name)[0].residencies


def store(fleet: Fleet, name: str) -> None:
    fleet.atlas.apply(name, 0, [BlockStored((EngineHash(1),), None, array("I", range(16)), 16)])


def names(fleet: Fleet) -> list[str]:
    return sorted(endpoint.name for endpoint in fleet)


async def test_endpoints_are_those_discovered_when_they_change() -> None:
    async with make_fleet() as fleet:
        changes: list[bool] = []
        discovered = make_discovered(fleet, on_change=lambda: changes.append(True))
        discovered.change(found("a") | found("b", 2))
        assert (names(fleet), changes) == (["a", "b"], [True])
        discovered.change({"a": None})
        assert names(fleet) == ["b"]


async def test_new_endpoints_are_there_when_others_go() -> None:
    async with make_fleet() as fleet:
        left: list[tuple[str, list[str]]] = []
        fleet.forgotten.append(lambda name: left.append((name, names(fleet))))
        discovered = make_discovered(fleet)
        discovered.change(found("a"))
        discovered.change({"a": None, **found("b", 2)})
        assert left == [("a", ["b"])]


@pytest.mark.parametrize(
    ("again", "n_held"),
    [
        pytest.param(found("a", zone="z"), 1, id="same_pod_other_label"),
        pytest.param(found("a", uid="v"), 0, id="another_pod_same_address"),
        pytest.param(found("a", 2), 0, id="same_pod_other_address"),
    ],
)
async def test_blocks_stay_with_the_pod_when_its_name_stays(again: dict[str, Wanted], n_held: int) -> None:
    async with make_fleet() as fleet:
        discovered = make_discovered(fleet)
        discovered.change(found("a"))
        store(fleet, "a")
        discovered.change(again)
        assert held(fleet, "a") == n_held
        endpoint = fleet.get("a")
        assert endpoint is not None
        assert endpoint.labels == again["a"].labels


@pytest.mark.parametrize(
    ("after", "n_held"),
    [
        pytest.param(found("a"), 1, id="same_pod"),
        pytest.param(found("a", uid="v"), 0, id="another_pod_same_address"),
        pytest.param(found("a", 2), 0, id="same_pod_other_address"),
    ],
)
async def test_pod_goes_on_from_the_snapshot_when_it_is_the_same(
    after: dict[str, Wanted], n_held: int, tmp_path: Path
) -> None:
    config = SnapshotConfig(file=str(tmp_path / "snapshot"))
    async with make_fleet() as fleet:
        before = make_discovered(fleet)
        before.change(found("a"))
        store(fleet, "a")
        await make_snapshots(config, fleet, before.in_fleet).write()
    async with make_fleet() as fleet:
        snapshots = make_snapshots(config, fleet, {})
        await snapshots.read()
        async with running(make_discovered(fleet, snapshots)) as discovered:
            discovered.change(after)
            await until(lambda: names(fleet) == ["a"], what="the pod")
            assert held(fleet, "a") == n_held


async def test_other_endpoints_come_and_go_when_one_cannot_be_followed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """There are sockets for one endpoint only."""
    async with make_fleet(max_sockets=3) as fleet, running(make_discovered(fleet)) as discovered:
        discovered.change(found("a") | found("b", 2))
        await until(lambda: len(names(fleet)) == 1, what="room for one")
        (there,) = names(fleet)
        other = "a" if there == "b" else "b"
        await until(lambda: f"left out: endpoint '{other}'" in caplog.text, what="no room for the other")
        discovered.change({there: None})
        assert names(fleet) == []
        await until(lambda: names(fleet) == [other], what="room for the other")
