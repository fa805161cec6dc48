"""`dataLayer.crossReplica` as the section `replicas`."""

from __future__ import annotations

import pytest

from kvatlas.configs.cross_replica import redis_syncer, replicas_of, syncer_problems
from kvatlas.configs.data_layer import CrossReplicaConfig, DataLayerConfig
from kvatlas.configs.replicas import ReplicasConfig, ValkeyConfig
from kvatlas.configs.schema import PluginConfig
from kvatlas.configs.units import Duration

NEW = DataLayerConfig(cross_replica=CrossReplicaConfig(syncer_plugin_ref="sync"))
OLD = DataLayerConfig(cross_replica_syncer_plugin_ref="sync")


def plugins(plugin_type: str, **parameters: object) -> list[PluginConfig]:
    return [
        PluginConfig(type="queue-scorer"),
        PluginConfig(type=plugin_type, name="sync", parameters=parameters),
    ]


@pytest.mark.parametrize(
    ("found", "layer", "section"),
    [
        pytest.param(
            plugins("redis-syncer"),
            NEW,
            ReplicasConfig("valkey", silent_after=Duration(2.0), valkey=ValkeyConfig("localhost:6379")),
            id="defaults",
        ),
        pytest.param(
            plugins("redis-state-store", address="redis:7000", db=3, passwordFile="/p", stateTTL="1m30.5s"),
            OLD,
            ReplicasConfig(
                "valkey",
                silent_after=Duration(90.5),
                valkey=ValkeyConfig("redis:7000", password_file="/p", database=3),  # noqa: S106
            ),
            id="older_place_and_alias",
        ),
        pytest.param(
            plugins("redis-syncer", passwordEnv="REDIS", stateTTL="100ms"),
            NEW,
            ReplicasConfig(
                "valkey",
                silent_after=Duration(0.5),
                valkey=ValkeyConfig("localhost:6379", password_env="REDIS"),  # noqa: S106
            ),
            id="shorter_than_heartbeats",
        ),
        pytest.param(plugins("local-syncer"), NEW, ReplicasConfig(), id="within_one_process"),
        pytest.param(plugins("redis-syncer"), DataLayerConfig(), ReplicasConfig(), id="not_named"),
        pytest.param([], NEW, ReplicasConfig(), id="missing"),
    ],
)
def test_syncer_becomes_the_section_of_replicas(
    found: list[PluginConfig], layer: DataLayerConfig, section: ReplicasConfig
) -> None:
    assert replicas_of(redis_syncer(found, layer, DataLayerConfig())) == section
    assert list(syncer_problems(found, layer)) == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        pytest.param(plugins("redis-syncer", password="x"), "plugins[1].parameters.password", id="plain"),  # noqa: S106
        pytest.param(
            plugins("redis-syncer", passwordEnv="A", passwordFile="b"),
            "plugins[1].parameters.passwordEnv: found 'A' together with passwordFile; keep one",
            id="two_passwords",
        ),
        pytest.param(
            plugins("redis-syncer", address="redis"),
            "plugins[1].parameters.address: found 'redis', expected HOST:PORT",
            id="no_port",
        ),
        pytest.param(plugins("redis-syncer", stateTTL="2"), "plugins[1].parameters.stateTTL", id="ttl"),
        pytest.param(plugins("local-syncer", address="x:1"), "plugins[1].parameters.address", id="local"),
        pytest.param(plugins("queue-scorer"), "plugins[1].type: found 'queue-scorer'", id="no_syncer"),
    ],
)
def test_parameters_of_a_syncer_are_checked(found: list[PluginConfig], problem: str) -> None:
    (first, *_) = map(str, syncer_problems(found, NEW))
    assert first.startswith(problem)
