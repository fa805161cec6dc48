"""What files of the reference picker say about scraping: addresses, TLS, GPUs and clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvatlas.configs.dcgm import DcgmConfig
from kvatlas.configs.engines import EngineCatalog
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import LoadedConfig, load_file
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.configs.scraping import MetricsScrapeConfig, ScrapeTlsConfig
from kvatlas.configs.units import Duration

QUEUE = {"type": "queue-scorer"}


def load(
    tmp_path: Path, *plugins: dict[str, Any], base: KVAtlasConfig | None = None, **more: Any
) -> LoadedConfig:
    file = tmp_path / "epp.yaml"
    head = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig", "plugins": [QUEUE, *plugins]}
    file.write_bytes(msgspec.yaml.encode(head | more))
    return load_file(file, base=base)


def source(plugin_type: str = "metrics-data-source", **parameters: Any) -> dict[str, Any]:
    return {"type": plugin_type, "name": "source", "parameters": parameters}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param(
            {"scheme": "https", "path": "m", "port": 8443},
            {"scheme": "https", "page": "m", "port": 8443, "tls": ScrapeTlsConfig(verify=False)},
            id="https",
        ),
        pytest.param(
            {"scheme": "https", "insecureSkipVerify": False, "caCertPath": "tls/ca.crt"},
            {"scheme": "https", "tls": ScrapeTlsConfig(ca_file="FOLDER/tls/ca.crt")},
            id="verified",
        ),
        pytest.param(
            {"scheme": "https", "clientCertPath": "/c", "clientKeyPath": "/k"},
            {"scheme": "https", "tls": ScrapeTlsConfig(verify=False, cert_file="/c", key_file="/k")},
            id="client_certificate",
        ),
        pytest.param({"caCertPath": "/ca", "port": 0}, {}, id="http_has_no_tls"),
        pytest.param({"families": ["vllm:x"], "path": ""}, {}, id="families"),
    ],
)
def test_source_says_where_endpoints_are_scraped(
    tmp_path: Path, parameters: dict[str, Any], expected: dict[str, Any]
) -> None:
    loaded = load(tmp_path, source(**parameters))

    if "tls" in expected:
        tls = expected["tls"]
        expected["tls"] = msgspec.structs.replace(tls, ca_file=tls.ca_file.replace("FOLDER", str(tmp_path)))
    assert loaded.config.metrics_scrape == MetricsScrapeConfig(**expected)
    assert [each.type for each in loaded.config.plugins] == ["queue-scorer"]


def test_own_settings_take_precedence_over_those_of_a_source(tmp_path: Path) -> None:
    own = KVAtlasConfig(api_version="kvatlas/v1", metrics_scrape=MetricsScrapeConfig(page="/own"))

    scrape = load(tmp_path, source(scheme="https", path="/m"), base=own).config.metrics_scrape

    assert (scrape.scheme, scrape.page) == ("https", "/own")


DCGM = (
    {"type": "dcgm-data-source", "name": "gpus", "parameters": {"useNodeAddress": True, "interval": "2s"}},
    {"type": "dcgm-extractor"},
)


def test_exporters_of_gpus_are_scraped(tmp_path: Path) -> None:
    loaded = load(tmp_path, *DCGM)

    assert loaded.config.metrics_scrape.dcgm == DcgmConfig(
        enabled=True, use_node_address=True, interval=Duration(2.0)
    )
    assert [each.type for each in loaded.config.plugins] == ["queue-scorer"]
    assert loaded.notes == ()


@pytest.mark.parametrize(
    ("number", "note"),
    [
        (0, "plugin gpus has no effect: there is no dcgm-extractor"),
        (1, "plugin dcgm-extractor has no effect: there is no dcgm-data-source"),
    ],
)
def test_one_of_both_plugins_for_gpus_is_noted(tmp_path: Path, number: int, note: str) -> None:
    loaded = load(tmp_path, DCGM[number])

    assert (loaded.config.metrics_scrape.dcgm, loaded.notes) == (DcgmConfig(), (note,))


CLUSTERS = [
    {
        "type": "multicluster-file-discovery",
        "name": "discovery",
        "parameters": {"path": "/etc/clusters.yaml"},
    },
    source("multicluster-metrics-data-source", caCertPath="/etc/ca.crt"),
    {"type": "multicluster-metrics-extractor"},
    {"type": "multicluster-prefix-cache-scorer"},
]


def test_clusters_are_scraped_for_the_averages_of_their_pickers(tmp_path: Path) -> None:
    loaded = load(tmp_path, *CLUSTERS, dataLayer={"discovery": {"pluginRef": "discovery"}})

    config, scrape = loaded.config, loaded.config.metrics_scrape
    assert config.endpoints.file == "/etc/clusters.yaml"
    assert (scrape.scheme, scrape.tls) == ("https", ScrapeTlsConfig(ca_file="/etc/ca.crt"))
    (cluster,) = EngineCatalog(scrape).of({}).values()
    assert [each.name for each in (*cluster.waiting, *cluster.kv_utilization)] == [
        "llm_d_epp_average_queue_size",
        "llm_d_epp_average_kv_cache_utilization",
    ]
    assert EngineCatalog(scrape).attributes == ("MultiClusterKVCacheUtilization", "MultiClusterQueueSize")
    assert [(each.type, each.known_as) for each in config.plugins] == [
        ("queue-scorer", "queue-scorer"),
        ("prefix-cache-scorer", "multicluster-prefix-cache-scorer"),
        ("approx-prefix-cache-producer", "multicluster-approx-prefix-cache-producer"),
    ]
    assert loaded.notes == ()


def test_declared_producer_of_clusters_keeps_its_parameters(tmp_path: Path) -> None:
    producer = {"type": "multicluster-approx-prefix-cache-producer", "parameters": {"autoTune": False}}

    plugins = load(tmp_path, CLUSTERS[3], producer).config.plugins

    assert [(each.known_as, each.parameters) for each in plugins[1:]] == [
        (
            "multicluster-prefix-cache-scorer",
            {"prefixMatchInfoProducerName": "multicluster-approx-prefix-cache-producer"},
        ),
        ("multicluster-approx-prefix-cache-producer", {"autoTune": False}),
    ]


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        pytest.param(source(scheme="ftp"), "parameters.scheme: found 'ftp'", id="scheme"),
        pytest.param(
            source(clientCertPath="/c"), "clientKeyPath: missing, expected both clientCertPath", id="key"
        ),
        pytest.param(source("dcgm-data-source", port=0), "parameters.port: found 0", id="dcgm"),
        pytest.param(
            source("multicluster-metrics-extractor", queueSizeMetric="a b"),
            "parameters.queueSizeMetric: found 'a b'",
            id="series",
        ),
        pytest.param(
            source("multicluster-metrics-extractor", queue="a"),
            "parameters.queue: unknown key",
            id="key_of_clusters",
        ),
    ],
)
def test_wrong_parameters_are_refused_with_their_place(
    tmp_path: Path, plugin: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, plugin)

    assert problem in str(raised.value)
