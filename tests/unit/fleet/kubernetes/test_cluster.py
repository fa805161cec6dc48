"""The process in its cluster, without an API server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from kvatlas.configs.schema import EventsConfig, SnapshotConfig
from kvatlas.fleet.fleet import Fleet
from kvatlas.fleet.kubernetes.client.errors import AccessError
from kvatlas.fleet.kubernetes.cluster import Cluster
from kvatlas.fleet.metrics import SnapshotMetrics
from kvatlas.fleet.snapshots import Snapshots
from support.fleets import make_config, make_fleet


def make_cluster(fleet: Fleet, folder: Path, **sections: Any) -> Cluster:
    """Return a cluster with a kubeconfig in `folder`, whose server does not respond."""
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
    return Cluster(config, fleet=fleet, snapshots=no_snapshots(fleet), on_change=lambda: None, environment={})


def no_snapshots(fleet: Fleet) -> Snapshots:
    return Snapshots(
        SnapshotConfig(),
        fleet=fleet,
        models=["m"],
        wanted=lambda _: None,
        metrics=SnapshotMetrics(CollectorRegistry()),
    )


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
