"""Registration of plugins, and producers from parameters."""

from __future__ import annotations

import pytest

from kvatlas.scorers.builtin import builtin_registry
from kvatlas.scorers.core.params import NoParams
from kvatlas.scorers.core.prefix_source import ApproxProducer, PreciseProducer
from kvatlas.scorers.errors import RegistryError
from kvatlas.scorers.queue import QueueScorer
from support.built import built


def test_scorer_registered_twice_raises() -> None:
    registry = builtin_registry()

    with pytest.raises(RegistryError, match="scorer 'queue-scorer' is registered twice"):
        registry.scorers.add("queue-scorer", NoParams, lambda _params, _context: QueueScorer())


def test_a_type_can_have_several_kinds() -> None:
    registry = builtin_registry()

    kinds = [kind.kind for kind in registry.kinds if kind.get("context-length-aware") is not None]

    assert kinds == ["filter", "scorer"]


@pytest.mark.parametrize(
    ("plugin_type", "parameters", "producer"),
    [
        pytest.param("approx-prefix-cache-producer", {}, ApproxProducer(None), id="approx_of_engine_size"),
        pytest.param(
            "approx-prefix-cache-producer",
            {"autoTune": False, "lruCapacityPerServer": 41000, "blockSizeTokens": 64},
            ApproxProducer(41000, default_capacity=41000, block_size=64),
            id="approx_of_given_size",
        ),
        pytest.param(
            "approx-prefix-cache-producer",
            {"autoTune": False},
            ApproxProducer(31250),
            id="approx_of_default_size",
        ),
        pytest.param(
            "approx-prefix-cache-producer",
            {"lruCapacityPerServer": 5},
            ApproxProducer(None, default_capacity=5),
            id="engine_size_wins",
        ),
        pytest.param(
            "approx-prefix-cache-producer",
            {"blockSize": 32, "maxPrefixTokensToMatch": 0, "maxPrefixBlocksToMatch": 7},
            ApproxProducer(None, block_size=32, max_tokens=0, max_blocks=7),
            id="approx_limits_and_older_name",
        ),
        pytest.param(
            "precise-prefix-cache-producer",
            {"speculativeIndexing": False, "speculativeTTL": "5s"},
            PreciseProducer({"gpu": 1.0, "cpu": 0.8, "shared_storage": 0.4, "object_store": 0.2}),
            id="precise_without_predictions",
        ),
        pytest.param(
            "precise-prefix-cache-producer",
            {
                "indexerConfig": {"kvCacheBackendConfigs": [{"name": "gpu", "weight": 1}]},
            },
            PreciseProducer({"gpu": 1.0}, predicted_ttl="2s"),
            id="precise_with_predictions",
        ),
        pytest.param(
            "precise-prefix-cache-producer",
            {
                "indexerConfig": {
                    "kvCacheBackendConfigs": [{"name": "GPU", "weight": 1}, {"name": "cpu", "weight": 0.4}]
                },
                "kvEventsConfig": {
                    "topicFilter": "kv@",
                    "podDiscoveryConfig": {"socketPort": 5556, "replaySocketPort": 5560},
                },
            },
            PreciseProducer({"gpu": 1.0, "cpu": 0.4}, None, 5556, 5560, "kv@", "2s"),
            id="precise_credits_and_ports",
        ),
        pytest.param(
            "precise-prefix-cache-producer",
            {"kvEventsConfig": {"discoverPods": False, "zmqEndpoint": "tcp://*:5557"}},
            PreciseProducer(
                {"gpu": 1.0, "cpu": 0.8, "shared_storage": 0.4, "object_store": 0.2},
                "tcp://*:5557",
                predicted_ttl="2s",
            ),
            id="precise_bound",
        ),
        pytest.param(
            "precise-prefix-cache-producer",
            {"kvEventsConfig": {"zmqEndpoint": "tcp://*:5557"}},
            PreciseProducer(
                {"gpu": 1.0, "cpu": 0.8, "shared_storage": 0.4, "object_store": 0.2}, predicted_ttl="2s"
            ),
            id="address_without_effect_while_pods_are_discovered",
        ),
    ],
)
def test_producers_follow_from_their_parameters(
    plugin_type: str, parameters: dict[str, object], producer: ApproxProducer | PreciseProducer
) -> None:
    assert built(builtin_registry().producers, plugin_type, parameters) == producer
