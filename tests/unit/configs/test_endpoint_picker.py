"""Files of the reference picker: conversion to a KVAtlasConfig, and rejected contents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import load_config, load_file
from kvatlas.configs.schema import AdmissionConfig, EndpointsConfig, EventsConfig, KVAtlasConfig
from kvatlas.configs.scraping import MetricsScrapeConfig
from kvatlas.configs.units import Duration
from support.config_files import message_of

VERSIONS = ("llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1")
APPROX = "approx-prefix-cache-producer"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "epp.yaml"


def write(file: Path, declared: list[dict[str, Any]], **more: object) -> Path:
    head = {"apiVersion": VERSIONS[0], "kind": "EndpointPickerConfig", "plugins": declared}
    file.write_bytes(msgspec.yaml.encode(head | more))
    return file


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_loads(file: Path, version: str) -> None:
    config = load_config(write(file, [{"type": "queue-scorer"}], apiVersion=version))

    assert config.api_version == "kvatlas/v1"
    assert [plugin.type for plugin in config.plugins] == ["queue-scorer"]


def test_plugins_and_profiles_are_unchanged(file: Path) -> None:
    plugins = [{"type": "load-aware-scorer", "name": "load", "parameters": {"threshold": 5}}]
    profiles = [{"name": "default", "plugins": [{"pluginRef": "load", "weight": 2.5}]}]

    config = load_config(write(file, plugins, schedulingProfiles=profiles))

    assert (config.plugins[0].known_as, config.plugins[0].parameters) == ("load", {"threshold": 5})
    assert [(each.plugin_ref, each.weight) for each in config.scheduling_profiles[0].plugins] == [
        ("load", 2.5)
    ]


@pytest.mark.parametrize(
    ("plugin", "producer"),
    [
        pytest.param({"type": "prefix-cache-scorer"}, APPROX, id="scorer_without_producer"),
        pytest.param({"type": "prefix-cache-affinity-filter"}, APPROX, id="filter_without_producer"),
        pytest.param(
            {"type": "prefix-cache-scorer", "parameters": {"matchLengthWeight": 0.5}},
            APPROX,
            id="other_parameters",
        ),
        pytest.param(
            {"type": "prefix-cache-scorer", "parameters": {"lruCapacityPerServer": 41000}},
            None,
            id="own_index",
        ),
        pytest.param({"type": "prefix-cache-scorer", "parameters": {"tier": "gpu"}}, None, id="tier"),
        pytest.param({"type": "queue-scorer"}, None, id="reads_no_prefix"),
        pytest.param({"type": "p2p-source-producer"}, APPROX, id="pull_source"),
    ],
)
def test_the_implied_producer_is_added(file: Path, plugin: dict[str, Any], producer: str | None) -> None:
    config = load_config(write(file, [plugin]))

    assert config.plugins[0].parameters.get("prefixMatchInfoProducerName") == producer
    assert [each.type for each in config.plugins[1:]] == ([producer] if producer else [])


def test_a_declared_producer_of_the_default_name_is_used(file: Path) -> None:
    declared = {"type": APPROX, "parameters": {"autoTune": False}}

    config = load_config(write(file, [{"type": "prefix-cache-scorer"}, declared]))

    assert [each.type for each in config.plugins] == ["prefix-cache-scorer", APPROX]


def test_only_plugins_and_profiles_are_merged_into_another_configuration(file: Path) -> None:
    base = KVAtlasConfig(api_version="kvatlas/v1", events=EventsConfig(port=7))

    config = load_file(write(file, [{"type": "queue-scorer"}]), base=base).config

    assert config.events.port == 7
    assert [plugin.type for plugin in config.plugins] == ["queue-scorer"]


def test_only_a_file_of_the_reference_may_come_with_another(file: Path) -> None:
    file.write_text("apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n")

    with pytest.raises(
        ConfigError,
        match="line 2, kind: found 'KVAtlasConfig', expected 'EndpointPickerConfig' together with",
    ):
        load_file(file, base=KVAtlasConfig(api_version="kvatlas/v1"))


def test_sections_of_the_reference_are_accepted(file: Path) -> None:
    plugins = [
        {"type": kind} for kind in ("metrics-data-source", "core-metrics-extractor", "openai-parser", "x")
    ]
    source = {"pluginRef": "metrics-data-source", "extractors": [{"pluginRef": "core-metrics-extractor"}]}

    loaded = load_file(
        write(
            file,
            plugins,
            dataLayer={"injectDefaults": False, "sources": [source], "crossReplicaSyncInterval": "100ms"},
            requestHandler={"parsers": [{"pluginRef": "openai-parser"}]},
            flowControl={"maxBytes": "1Gi", "defaultPriorityBand": {"priority": 0}},
            saturationDetector={"pluginRef": "x"},
            featureGates=["haPopulateNonLeaderDatastore=false", "dataLayer"],
        )
    )

    assert len(loaded.config.plugins) == 4
    assert [note.partition(": ")[0] for note in loaded.notes] == [
        "feature gate dataLayer has no effect",
        "feature gate haPopulateNonLeaderDatastore=false has no effect",
        "dataLayer.injectDefaults has no effect",
        "dataLayer.crossReplicaSyncInterval has no effect",
        "flowControl.maxBytes, defaultPriorityBand without effect",
    ]


FILES = {"type": "file-discovery", "name": "files", "parameters": {"path": "pods.yaml", "watchFile": True}}
DISCOVERY = {"discovery": {"pluginRef": "files"}}


@pytest.mark.parametrize("section", ["dataLayer", "data"])
def test_file_of_endpoints_is_that_of_the_discovery(file: Path, section: str) -> None:
    config = load_file(write(file, [FILES, {"type": "queue-scorer"}], **{section: DISCOVERY})).config

    assert config.endpoints == EndpointsConfig(file=str(file.parent / "pods.yaml"))
    assert [plugin.type for plugin in config.plugins] == ["queue-scorer"]


def test_file_of_endpoints_is_ignored_when_no_discovery_names_it(file: Path) -> None:
    config = load_file(write(file, [FILES, {"type": "queue-scorer"}])).config

    assert config.endpoints == EndpointsConfig()
    assert [plugin.type for plugin in config.plugins] == ["file-discovery", "queue-scorer"]


@pytest.mark.parametrize(
    ("endpoints", "found", "notes"),
    [
        pytest.param(EndpointsConfig(), "pods.yaml", (), id="discovery"),
        pytest.param(
            EndpointsConfig(file="/own.yaml"),
            "own.yaml",
            ("dataLayer.discovery: no effect, since the other configuration file names the endpoints",),
            id="own",
        ),
    ],
)
def test_endpoints_of_the_other_file_win_if_it_has_some(
    file: Path, endpoints: EndpointsConfig, found: str, notes: tuple[str, ...]
) -> None:
    base = KVAtlasConfig(api_version="kvatlas/v1", endpoints=endpoints)

    loaded = load_file(write(file, [FILES], dataLayer=DISCOVERY), base=base)

    assert (Path(loaded.config.endpoints.file).name, loaded.notes) == (found, notes)


THRESHOLDS = {"queueDepthThreshold": 8, "metricsStalenessThreshold": "150ms"}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(None, (8, 0.8, 0.15), id="alone"),
        pytest.param(AdmissionConfig(objectives={"batch": -1}), (8, 0.8, 0.15), id="defaults"),
        pytest.param(
            AdmissionConfig(queue_depth_threshold=3, kv_cache_util_threshold=0.5), (3, 0.5, 0.15), id="own"
        ),
    ],
)
def test_thresholds_of_older_files_count_when_another_file_has_none(
    file: Path, own: AdmissionConfig | None, expected: tuple[float, float, float]
) -> None:
    base = KVAtlasConfig(api_version="kvatlas/v1", admission=own) if own is not None else None

    loaded = load_file(write(file, [{"type": "queue-scorer"}], saturationDetector=THRESHOLDS), base=base)

    found = loaded.config.admission
    thresholds: list[float] = [
        found.queue_depth_threshold,
        found.kv_cache_util_threshold,
        found.metrics_staleness_threshold,
    ]
    assert thresholds == list(expected)
    assert found.objectives == (own.objectives if own is not None else {})


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        pytest.param(
            {"apiVersion": "v2"}, "apiVersion: found 'v2', expected 'inference.networking", id="version"
        ),
        pytest.param({"plugin": []}, "plugin: unknown key; did you mean 'plugins'? allowed: kind", id="key"),
        pytest.param(
            {"plugins": [{"type": "a"}, {"type": "b", "name": "a"}]},
            "plugins[1].name: found 'a', which is also the plugin name at plugins[0].type",
            id="name_twice",
        ),
        pytest.param(
            {"schedulingProfiles": [{"plugins": [{"pluginRef": "queue-score"}]}]},
            "schedulingProfiles[0].plugins[0].pluginRef: found 'queue-score', expected the name of a plugin; did you mean "
            "'queue-scorer'? known: queue-scorer",
            id="profile_reference",
        ),
        pytest.param(
            {"schedulingProfiles": [{"plugins": [{"pluginRef": "queue-scorer", "weight": float("inf")}]}]},
            "schedulingProfiles[0].plugins[0].weight: found infinity, expected a number from -1000000000 to 1000000000",
            id="infinite_weight",
        ),
        pytest.param(
            {"schedulingProfiles": [{"plugins": [{"pluginRef": "queue-scorer", "weight": 1.7e308}]}]},
            "schedulingProfiles[0].plugins[0].weight: found 1.7e+308, expected a number from -1000000000 to 1000000000",
            id="totals_would_overflow",
        ),
        pytest.param(
            {"dataLayer": {"sources": [{"pluginRef": "queue-scorer", "extractors": [{"pluginRef": "x"}]}]}},
            "dataLayer.sources[0].extractors[0].pluginRef: found 'x', expected the name of a plugin",
            id="extractor_reference",
        ),
        pytest.param(
            {"dataLayer": {"discovery": {"pluginRef": "files"}}},
            "dataLayer.discovery.pluginRef: found 'files'",
            id="discovery_reference",
        ),
        pytest.param(
            {"saturationDetector": {"queueDepthThreshold": -1}},
            "saturationDetector.queueDepthThreshold: found -1, expected a whole number of at least 0",
            id="threshold",
        ),
        pytest.param(
            {"saturationDetector": {"pluginRef": "x"}},
            "saturationDetector.pluginRef: found 'x'",
            id="detector",
        ),
        pytest.param(
            {"data": {"sources": [{"pluginRef": "x"}]}},
            "data.sources[0].pluginRef: found 'x'",
            id="older_section",
        ),
        pytest.param(
            {"plugins": [FILES | {"parameters": {"path": 1}}], "dataLayer": DISCOVERY},
            "plugins[0].parameters.path: found 1, expected text, not empty",
            id="discovery_parameters",
        ),
        pytest.param(
            {"dataLayer": {"crossReplicaSyncerPluginRef": "sync"}},
            "dataLayer.crossReplicaSyncerPluginRef: found 'sync'",
            id="syncer_reference",
        ),
        pytest.param(
            {"requestHandler": {"parsers": [{"pluginRef": "p"}]}},
            "requestHandler.parsers[0].pluginRef: found 'p'",
            id="parser_reference",
        ),
        pytest.param(
            {"parser": {"pluginRef": "p"}}, "parser.pluginRef: found 'p'", id="old_parser_reference"
        ),
        pytest.param(
            {"featureGates": ["flowcontrol"]},
            "featureGates[0]: found 'flowcontrol', expected a feature gate; did you mean 'flowControl'?",
            id="gate",
        ),
        pytest.param(
            {"featureGates": ["flowControl=yes"]},
            "featureGates[0]: found 'flowControl=yes', expected flowControl=true or flowControl=false",
            id="gate_value",
        ),
    ],
)
def test_each_mistake_is_named_with_line_and_path(file: Path, more: dict[str, Any], problem: str) -> None:
    message = message_of(write(file, [{"type": "queue-scorer"}], **more))

    assert message.startswith("epp.yaml: line ")
    assert message.partition(", ")[2].startswith(problem)
    assert "\n" not in message


DETECTOR = {"type": "utilization-detector", "parameters": {"queueDepthThreshold": 9, "headroom": 0.2}}
BY_NAME = DETECTOR | {"name": "busy"}
QUEUE = {"type": "queue-scorer"}


@pytest.mark.parametrize(
    ("plugins", "sections", "threshold"),
    [
        pytest.param([DETECTOR], {}, 9, id="usual_name"),
        pytest.param([BY_NAME], {}, 5, id="not_named"),
        pytest.param([BY_NAME], {"saturationDetector": {"pluginRef": "busy"}}, 9, id="named"),
        pytest.param(
            [BY_NAME], {"flowControl": {"saturationDetector": {"pluginRef": "busy"}}}, 9, id="in_flow_control"
        ),
        pytest.param(
            [DETECTOR, {"type": "concurrency-detector"}],
            {"saturationDetector": {"pluginRef": "concurrency-detector"}},
            5,
            id="another_detector",
        ),
        pytest.param(
            [DETECTOR], {"saturationDetector": {"queueDepthThreshold": 7}}, 9, id="before_the_section"
        ),
    ],
)
def test_thresholds_of_the_detector_in_force_count(
    file: Path, plugins: list[dict[str, Any]], sections: dict[str, Any], threshold: int
) -> None:
    config = load_config(write(file, [QUEUE, *plugins], **sections))

    assert config.admission == AdmissionConfig(queue_depth_threshold=threshold)
    left = [plugin.type for plugin in config.plugins]
    assert ("utilization-detector" in left) == (threshold == 5)


def test_detector_of_a_profile_is_its_filter_too(file: Path) -> None:
    profile = {"name": "default", "plugins": [{"pluginRef": "utilization-detector"}]}

    config = load_config(write(file, [QUEUE, DETECTOR], schedulingProfiles=[profile]))

    assert config.admission == AdmissionConfig(queue_depth_threshold=9)
    assert "utilization-detector" in [plugin.type for plugin in config.plugins]


@pytest.mark.parametrize(
    ("parameters", "interval"),
    [
        pytest.param({}, 0.05, id="nothing"),
        pytest.param({"interval": "200ms", "insecureSkipVerify": False}, 0.2, id="interval"),
        pytest.param({"interval": "1ms"}, 0.05, id="shortest"),
    ],
)
def test_interval_of_the_data_source_counts(file: Path, parameters: dict[str, Any], interval: float) -> None:
    loaded = load_file(write(file, [QUEUE, {"type": "metrics-data-source", "parameters": parameters}]))

    assert loaded.config.metrics_scrape == MetricsScrapeConfig(interval=Duration(interval))
    assert len(loaded.config.plugins) == (1 if parameters else 2)
    assert loaded.notes == ()


@pytest.mark.parametrize(("own", "interval"), [(0.05, 0.2), (0.1, 0.1)], ids=["default", "own"])
def test_interval_of_the_data_source_counts_when_another_file_has_none(
    file: Path, own: float, interval: float
) -> None:
    scrape = MetricsScrapeConfig(interval=Duration(own))
    base = KVAtlasConfig(api_version="kvatlas/v1", metrics_scrape=scrape)
    source = {"type": "metrics-data-source", "parameters": {"interval": "200ms"}}

    assert load_file(write(file, [QUEUE, source]), base=base).config.metrics_scrape.interval == interval


@pytest.mark.parametrize(
    ("plugin", "sections", "problem"),
    [
        pytest.param(
            DETECTOR | {"parameters": {"kvCacheUtilThreshold": 2}},
            {},
            "plugins[1].parameters.kvCacheUtilThreshold: found 2, expected",
            id="detector",
        ),
        pytest.param(
            {"type": "metrics-data-source", "parameters": {"interval": "soon"}},
            {},
            "plugins[1].parameters.interval: found 'soon', expected",
            id="source",
        ),
        pytest.param(
            BY_NAME,
            {"flowControl": {"saturationDetector": {"pluginRef": "bussy"}}},
            "flowControl.saturationDetector.pluginRef: found 'bussy'",
            id="reference",
        ),
    ],
)
def test_impossible_parameters_of_the_reference_are_rejected_with_their_path(
    file: Path, plugin: dict[str, Any], sections: dict[str, Any], problem: str
) -> None:
    assert problem in message_of(write(file, [QUEUE, plugin], **sections))
