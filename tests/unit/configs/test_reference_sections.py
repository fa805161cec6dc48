"""Sections of files of the reference picker, in their form of version 1 and in older ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.configs.loader import load_file
from support.config_files import message_of

QUEUE = {"type": "queue-scorer"}
ENDPOINTS = {"type": "file-discovery", "name": "files", "parameters": {"path": "pods.yaml"}}
FLOW_CONTROL = {"featureGates": ["flowControl"]}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "epp.yaml"


def write(file: Path, **sections: Any) -> Path:
    head = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig", "plugins": [QUEUE, ENDPOINTS]}
    file.write_bytes(msgspec.yaml.encode(head | sections))
    return file


@pytest.mark.parametrize(
    "discovery",
    [
        pytest.param({"endpoints": {"pluginRef": "files"}}, id="version_1"),
        pytest.param(
            {"endpoints": {"pluginRef": "files"}, "peers": {"pluginRef": "nobody"}}, id="with_peers"
        ),
        pytest.param({"pluginRef": "files"}, id="alpha"),
    ],
)
def test_endpoints_come_from_the_named_discovery(file: Path, discovery: dict[str, Any]) -> None:
    config = load_file(write(file, dataLayer={"discovery": discovery})).config

    assert config.endpoints.file == str(file.parent / "pods.yaml")


@pytest.mark.parametrize(
    ("layer", "noted"),
    [
        pytest.param({"discovery": {"peers": {"pluginRef": "x"}}}, ["discovery.peers"], id="peers"),
        pytest.param({"peerDiscovery": {"pluginRef": "x"}}, ["peerDiscovery"], id="peers_alpha"),
        pytest.param(
            {"crossReplica": {"syncInterval": "200ms", "publishTimeout": "1m30s"}},
            ["crossReplica.syncInterval", "crossReplica.publishTimeout"],
            id="replicas",
        ),
        pytest.param({"crossReplicaSyncInterval": "0"}, ["crossReplicaSyncInterval"], id="replicas_alpha"),
        pytest.param({"injectDefaults": False}, ["injectDefaults"], id="no_scraping"),
        pytest.param({"injectDefaults": True, "crossReplica": {}}, [], id="defaults"),
    ],
)
def test_setting_of_the_data_layer_without_effect_is_noted(
    file: Path, layer: dict[str, Any], noted: list[str]
) -> None:
    notes = load_file(write(file, dataLayer=layer)).notes

    assert [note.partition(" has no effect: ")[0] for note in notes] == [f"dataLayer.{key}" for key in noted]


@pytest.mark.parametrize(
    ("gates", "noted"),
    [
        pytest.param(["flowControl"], "flowControl", id="on"),
        pytest.param(["flowControl=true"], "flowControl", id="true"),
        pytest.param(["flowControl=T"], "flowControl", id="as_in_go"),
        pytest.param(["flowControl", "flowControl=false"], "", id="last_counts"),
        pytest.param(["flowControl=false", "haPopulateNonLeaderDatastore"], "", id="defaults"),
        pytest.param(["haPopulateNonLeaderDatastore=0"], "haPopulateNonLeaderDatastore=false", id="off"),
        pytest.param(["enableLegacyMetrics"], "enableLegacyMetrics", id="older"),
    ],
)
def test_gate_that_is_not_at_its_default_is_noted(file: Path, gates: list[str], noted: str) -> None:
    loaded = load_file(write(file, featureGates=gates))

    names = [note.removeprefix("feature gate ").partition(" has no effect: ")[0] for note in loaded.notes]
    assert names == ([noted] if noted else [])


@pytest.mark.parametrize("plugins", [None, [], [ENDPOINTS]], ids=["null", "empty", "discovery_alone"])
def test_file_without_plugins_gets_the_defaults_of_the_reference(file: Path, plugins: object) -> None:
    layer = {"discovery": {"endpoints": {"pluginRef": "files"}}} if plugins else {}

    config = load_file(write(file, plugins=plugins, dataLayer=layer)).config

    (profile,) = config.scheduling_profiles
    assert [(each.plugin_ref, each.weight) for each in profile.plugins] == [
        ("queue-scorer", 2),
        ("kv-cache-utilization-scorer", 2),
        ("prefix-cache-scorer", 3),
    ]
    assert "approx-prefix-cache-producer" in [each.type for each in config.plugins]


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({"schedulingProfiles": None, "flowControl": None, "dataLayer": None}, id="sections"),
        pytest.param({"plugins": [QUEUE | {"parameters": None, "name": None}]}, id="of_a_plugin"),
        pytest.param({"plugins": [QUEUE | {"name": ""}]}, id="empty_name"),
        pytest.param({"requestHandler": {"parsers": [{"pluginRef": "passthrough-parser"}]}}, id="default_parser"),
        pytest.param({"saturationDetector": {"pluginRef": "utilization-detector"}}, id="default_detector"),
        pytest.param({"flowControl": {"maxBytes": "1Gi", "maxRequests": 1.5}}, id="quantities"),
        pytest.param({"flowControl": {"defaultRequestTTL": "0s", "enableEviction": True}}, id="durations"),
        pytest.param({"flowControl": {"maxRequests": "-1", "usageLimitPolicyPluginRef": "x"}}, id="gate_off"),
        pytest.param(
            FLOW_CONTROL | {"flowControl": {"priorityBands": [{"fairnessPolicyRef": "fair"}, {"priority": 1}]},
            "plugins": [QUEUE, {"type": "round-robin-fairness-policy", "name": "fair"}]}, id="listed_policy",
        ),
    ],
)  # fmt: skip
def test_section_that_the_reference_accepts_loads(file: Path, sections: dict[str, Any]) -> None:
    assert load_file(write(file, **sections)).config.plugins[0].known_as == "queue-scorer"


@pytest.mark.parametrize("wanted", [True, False])
def test_priority_of_requests_goes_on_to_engines_when_the_file_says_so(file: Path, wanted: bool) -> None:
    config = load_file(write(file, requestHandler={"propagatePriority": wanted})).config

    assert config.request_handler.propagate_priority is wanted


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        pytest.param(
            {"dataLayer": {"discovery": {"pluginRef": "files", "endpoints": {"pluginRef": "files"}}}},
            "dataLayer.discovery.pluginRef: found 'files' together with endpoints; keep one",
            id="both_discoveries",
        ),
        pytest.param(
            {"dataLayer": {"crossReplica": {"syncerPluginRef": "redis"}}},
            "dataLayer.crossReplica.syncerPluginRef: found 'redis', expected the name of a plugin",
            id="syncer",
        ),
        pytest.param(
            {"dataLayer": {"crossReplica": {"syncInterval": "200"}}},
            "dataLayer.crossReplica.syncInterval: found '200', expected a duration such as 500ms",
            id="interval",
        ),
        pytest.param(
            {"flowControl": {"maxQueue": 3}},
            "flowControl.maxQueue: unknown key; allowed: maxBytes, ",
            id="unknown_key",
        ),
        pytest.param(
            {"flowControl": {"defaultRequestTTL": "60"}},
            "flowControl.defaultRequestTTL: found '60', expected a duration such as 500ms, 60s",
            id="duration",
        ),
        pytest.param(
            {"flowControl": {"priorityBands": [{"maxBytes": "1 GB"}]}},
            "flowControl.priorityBands[0].maxBytes: found '1 GB', expected a quantity such as 1Gi",
            id="quantity",
        ),
        pytest.param(
            FLOW_CONTROL | {"flowControl": {"maxRequests": "-1"}},
            "flowControl.maxRequests: found '-1', expected none below 0",
            id="negative",
        ),
        pytest.param(
            FLOW_CONTROL | {"flowControl": {"priorityBands": [{"priority": 1}, {"priority": 1}]}},
            "flowControl.priorityBands[1].priority: found 1, which priorityBands[0] has too; keep one",
            id="band_twice",
        ),
        pytest.param(
            FLOW_CONTROL
            | {"flowControl": {"defaultPriorityBand": {"orderingPolicyRef": "edf-ordering-policy"}}},
            "flowControl.defaultPriorityBand.orderingPolicyRef: found 'edf-ordering-policy', expected the name of a",
            id="policy_not_listed",
        ),
        pytest.param(
            FLOW_CONTROL | {"flowControl": {"usageLimitPolicyPluginRef": "queue-scorer"}},
            "flowControl.usageLimitPolicyPluginRef: found 'queue-scorer' of type queue-scorer, expected one of static",
            id="policy_of_another_kind",
        ),
    ],
)
def test_section_that_the_reference_refuses_names_the_place(
    file: Path, sections: dict[str, Any], problem: str
) -> None:
    assert message_of(write(file, **sections)).partition(", ")[2].startswith(problem)
