from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from kvatlas.configs.schema import EventsConfig, SnapshotConfig
from kvatlas.events.model import BlockStored, EngineHash
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.kubernetes.client.errors import AccessError
from kvatlas.fleet.kubernetes.cluster import Cluster
from kvatlas.fleet.kubernetes.pods import PodEndpoint
from kvatlas.fleet.metrics import SnapshotMetrics
from kvatlas.fleet.roster import Wanted, wanted_endpoints
from kvatlas.fleet.snapshots import Snapshots
from support.fleets import make_config, make_endpoint, make_fleet, with_endpoints
from support.waiting import until

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def make_cluster(
    fleet: Fleet,
    folder: Path,
    changes: list[bool] | None = None,
    snapshots: Snapshots | None = None,
    **sections: Any,
) -> Cluster:
    """A cluster that is reached by a kubeconfig in `folder`, and not asked."""
    (folder / "config").write_bytes(
        msgspec.yaml.encode(
            {
                "current-context": "c",
                "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            }
        )
    )
    kubernetes = {"inferencePool": "mine", "kubeconfig": str(folder / "config")}
    config = make_config(endpoints={"kubernetes": kubernetes}, **sections)
    changed = changes if changes is not None else []
    return Cluster(
        config,
        fleet=fleet,
        snapshots=snapshots or no_snapshots(fleet),
        on_change=lambda: changed.append(True),
        environment={},
    )


def no_snapshots(fleet: Fleet) -> Snapshots:
    return make_snapshots(SnapshotConfig(), fleet, {})


def make_snapshots(config: SnapshotConfig, fleet: Fleet, saved: Mapping[str, Wanted]) -> Snapshots:
    return Snapshots(
        config, fleet=fleet, models=["m"], wanted=saved.get, metrics=SnapshotMetrics(CollectorRegistry())
    )


def found(name: str, number: int = 1, *, uid: str = "u", **labels: str) -> dict[str, PodEndpoint]:
    """What discovery tells of one pod."""
    wanted = wanted_endpoints(with_endpoints(make_endpoint(name, number)))[name]
    return {name: PodEndpoint(uid, wanted.addresses, labels)}


def held(fleet: Fleet, name: str) -> int:
    return fleet.atlas.occupancy(name)[0].residencies


def store(fleet: Fleet, name: str) -> None:
    fleet.atlas.apply(name, 0, [BlockStored((EngineHash(1),), None, array("I", range(16)), 16)])


def names(fleet: Fleet) -> list[str]:
    return sorted(endpoint.name for endpoint in fleet)


async def test_process_has_no_part_when_nothing_asks_for_one() -> None:
    async with make_fleet() as fleet:
        cluster = Cluster(
            make_config(), fleet=fleet, snapshots=no_snapshots(fleet), on_change=lambda: None, environment={}
        )
        await cluster.start()
        cluster.configure(EventsConfig())
        assert (cluster.is_synced, cluster.is_ready) == (True, True)
        assert [family.name for family in cluster.families() if family.samples] == []
        await cluster.resign()


async def test_start_is_refused_when_there_is_no_way_to_an_api_server() -> None:
    config = make_config(leaderElection={"enabled": True})
    async with make_fleet() as fleet:
        with pytest.raises(AccessError, match="no API server"):
            Cluster(
                config,
                fleet=fleet,
                snapshots=no_snapshots(fleet),
                on_change=lambda: None,
                environment={"HOME": "/nowhere"},
            )


async def test_endpoints_are_those_told_when_they_change(tmp_path: Path) -> None:
    async with make_fleet() as fleet:
        changes: list[bool] = []
        cluster = make_cluster(fleet, tmp_path, changes)
        cluster.bring(found("a") | found("b", 2))
        assert (names(fleet), changes) == (["a", "b"], [True])
        cluster.bring(found("b", 2))
        assert names(fleet) == ["b"]


@pytest.mark.parametrize(
    ("again", "n_held"),
    [
        pytest.param(found("a", zone="z"), 1, id="same_pod_other_label"),
        pytest.param(found("a", uid="v"), 0, id="another_pod_same_address"),
        pytest.param(found("a", 2), 0, id="same_pod_other_address"),
    ],
)
async def test_blocks_stay_with_the_pod_when_its_name_stays(
    again: dict[str, PodEndpoint], n_held: int, tmp_path: Path
) -> None:
    async with make_fleet() as fleet:
        cluster = make_cluster(fleet, tmp_path)
        cluster.bring(found("a"))
        store(fleet, "a")
        cluster.bring(again)
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
    after: dict[str, PodEndpoint], n_held: int, tmp_path: Path
) -> None:
    config = SnapshotConfig(file=str(tmp_path / "snapshot"))
    async with make_fleet() as fleet:
        before = make_cluster(fleet, tmp_path)
        before.bring(found("a"))
        store(fleet, "a")
        await make_snapshots(config, fleet, before.endpoints).write()
    async with make_fleet() as fleet:
        snapshots = make_snapshots(config, fleet, {})
        await snapshots.read()
        cluster = make_cluster(fleet, tmp_path, snapshots=snapshots)
        await cluster.start()
        cluster.bring(after)
        await until(lambda: names(fleet) == ["a"], what="the pod")
        assert held(fleet, "a") == n_held
        await cluster.resign()


async def test_other_endpoints_come_and_go_when_one_cannot_be_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Room for the sockets of one endpoint."""
    async with make_fleet(max_sockets=3) as fleet:
        cluster = make_cluster(fleet, tmp_path)
        await cluster.start()
        try:
            cluster.bring(found("a") | found("b", 2))
            await until(lambda: len(names(fleet)) == 1, what="room for one")
            (there,) = names(fleet)
            other = "a" if there == "b" else "b"
            await until(lambda: f"left out: endpoint '{other}'" in caplog.text, what="no room for the other")
            cluster.bring(found(other, 2))
            assert names(fleet) == []
            await until(lambda: names(fleet) == [other], what="room for the other")
        finally:
            await cluster.resign()


async def test_process_is_not_ready_when_it_does_not_lead(tmp_path: Path) -> None:
    async with make_fleet() as fleet:
        cluster = make_cluster(fleet, tmp_path, leaderElection={"enabled": True})
        assert not cluster.is_ready
        families = {family.name: family.samples[0].value for family in cluster.families() if family.samples}
        assert families["kvatlas_leads"] == 0


async def test_process_goes_on_without_its_cluster_when_the_api_server_is_away(tmp_path: Path) -> None:
    async with make_fleet() as fleet:
        cluster = make_cluster(fleet, tmp_path, leaderElection={"enabled": True})
        await cluster.start()
        cluster.configure(EventsConfig(port=6000))
        assert (cluster.is_synced, cluster.is_ready, cluster.priorities) == (False, False, {})
        await cluster.resign()
