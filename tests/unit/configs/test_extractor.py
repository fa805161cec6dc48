"""Series of engines in files of the reference picker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.configs.engines import EngineCatalog, Selector
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import LoadedConfig, load_file
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.configs.scraping import EngineConfig, MetricsScrapeConfig

ATOM = {
    "name": "atom",
    "queuedRequestsSpec": "atom:waiting{state=queued}",
    "runningRequestsSpec": "atom:running",
    "kvUsageSpec": "atom:usage",
    "cacheInfoSpec": "atom:cache_config_info",
}
ATOM_SERIES = EngineConfig(
    waiting="atom:waiting{state=queued}",
    running="atom:running",
    kv_utilization="atom:usage",
    lora_info="",
    cache_info="atom:cache_config_info",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "epp.yaml"


def load(
    file: Path, *parameters: dict[str, Any], plugin_type: str = "core-metrics-extractor", **more: Any
) -> LoadedConfig:
    """Write a file with one extractor per set of parameters."""
    extractors = [
        {"type": plugin_type, "name": f"e{number}", "parameters": each}
        for number, each in enumerate(parameters)
    ]
    head = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}
    file.write_text(yaml.safe_dump(head | {"plugins": [*extractors, {"type": "queue-scorer"}]}))
    return load_file(file, **more)


@pytest.mark.parametrize("plugin_type", ["core-metrics-extractor", "model-server-protocol-metrics"])
def test_engines_and_default_are_those_of_the_plugin(file: Path, plugin_type: str) -> None:
    loaded = load(file, {"defaultEngine": "atom", "engineConfigs": [ATOM]}, plugin_type=plugin_type)

    scrape = loaded.config.metrics_scrape
    assert (scrape.engine, scrape.engines) == ("atom", {"atom": ATOM_SERIES})
    assert [plugin.type for plugin in loaded.config.plugins] == ["queue-scorer"]
    assert loaded.notes == ()
    atom = EngineCatalog(scrape).of({})["atom"]
    assert atom.waiting == (Selector("atom:waiting", (("state", "queued"),)),)
    assert atom.lora_info == ()


def test_plugin_without_parameters_is_left_for_a_note(file: Path) -> None:
    loaded = load(file, {})

    assert loaded.config.metrics_scrape == MetricsScrapeConfig()
    assert [plugin.type for plugin in loaded.config.plugins] == ["core-metrics-extractor", "queue-scorer"]


def test_missing_series_of_a_known_engine_are_removed(file: Path) -> None:
    config = load(file, {"engineConfigs": [{"name": "vllm", "queuedRequestsSpec": "q"}]}).config

    vllm = EngineCatalog(config.metrics_scrape).of({"llm-d.ai/engine-type": "vllm"})["vllm"]
    assert (vllm.waiting, vllm.running, vllm.cache_info) == ((Selector("q"),), (), ())


def test_later_plugins_override_earlier_ones(file: Path) -> None:
    first = {"defaultEngine": "sglang", "engineConfigs": [ATOM]}

    scrape = load(file, first, {"engineConfigs": [ATOM | {"kvUsageSpec": "new"}]}).config.metrics_scrape

    assert (scrape.engine, scrape.engines["atom"].kv_utilization) == ("sglang", "new")


@pytest.mark.parametrize(
    ("parameters", "note"),
    [
        pytest.param(
            {"engineLabelKey": "my/engine"},
            "plugin e0: label my/engine is ignored; engines are detected by their series",
            id="label",
        ),
        pytest.param(
            {"defaultEngine": "x", "engineConfigs": [{"name": "x", "runningRequestsSpec": "r"}]},
            "plugin e0: engine x is ignored, since it has no series of queued requests",
            id="no_queue",
        ),
    ],
)
def test_settings_without_effect_are_noted(file: Path, parameters: dict[str, Any], note: str) -> None:
    loaded = load(file, parameters)

    assert loaded.notes == (note,)
    assert loaded.config.metrics_scrape == MetricsScrapeConfig()


@pytest.mark.parametrize("label", ["llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"])
def test_known_labels_are_not_noted(file: Path, label: str) -> None:
    assert load(file, {"engineLabelKey": label}).notes == ()


@pytest.mark.parametrize(
    ("own", "engine", "names"),
    [
        pytest.param(MetricsScrapeConfig(), "atom", {"atom": ATOM_SERIES}, id="nothing"),
        pytest.param(
            MetricsScrapeConfig(engine="sglang", engines={"atom": EngineConfig(waiting="w")}),
            "sglang",
            {"atom": EngineConfig(waiting="w")},
            id="the_same",
        ),
    ],
)
def test_engines_are_added_to_those_of_another_file(
    file: Path, own: MetricsScrapeConfig, engine: str, names: dict[str, EngineConfig]
) -> None:
    base = KVAtlasConfig(api_version="kvatlas/v1", metrics_scrape=own)

    scrape = load(file, {"defaultEngine": "atom", "engineConfigs": [ATOM]}, base=base).config.metrics_scrape

    assert (scrape.engine, scrape.engines) == (engine, names)


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        pytest.param({"engines": []}, ".engines: unknown key; did you mean 'engineConfigs'?", id="key"),
        pytest.param(
            {"engineConfigs": [{"name": ""}]}, ".engineConfigs[0].name: found '', expected text", id="name"
        ),
        pytest.param(
            {"engineConfigs": [ATOM | {"loraSpec": "a b"}]},
            ".engineConfigs[0].loraSpec: found 'a b', expected a series such as name",
            id="series",
        ),
        pytest.param(
            {"defaultEngine": "atom"},
            ".defaultEngine: found 'atom', expected an engine; known: vllm",
            id="default",
        ),
    ],
)
def test_each_mistake_is_named_with_its_path(file: Path, parameters: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(file, parameters)

    assert f"plugins[0].parameters{problem}" in str(raised.value)


def test_further_series_become_attributes(file: Path) -> None:
    more = {
        "customMetrics": [
            {"attributeKey": "temp", "metricSpec": "gpu_temp"},
            {"attributeKey": "power", "metricSpec": "power{kind=total}"},
        ],
        "cacheBlockSizeSpec": "atom:block",
        "cacheNumBlocksLabelName": "pages",
    }

    scrape = load(file, {"defaultEngine": "atom", "engineConfigs": [ATOM | more]}).config.metrics_scrape

    catalog = EngineCatalog(scrape)
    atom = catalog.of({})["atom"]
    assert catalog.attributes == ("power", "temp")
    assert dict(atom.attributes) == {
        "temp": Selector("gpu_temp"),
        "power": Selector("power", (("kind", "total"),)),
    }
    assert {"gpu_temp", "power"} <= set(atom.names)
    assert (atom.block_size, atom.num_blocks_label) == ((Selector("atom:block"),), "pages")


def test_malformed_further_series_are_refused_with_their_place(file: Path) -> None:
    more = {"customMetrics": [{"attributeKey": "temp", "metricSpec": "gpu temp"}]}

    with pytest.raises(ConfigError, match=r"customMetrics\[0\].metricSpec: found 'gpu temp'"):
        load(file, {"engineConfigs": [ATOM | more]})
