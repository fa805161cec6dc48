"""Differences of configurations: their text, and which need a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from kvatlas.configs.changes import ENTRY, LIVE, changes
from kvatlas.configs.loader import load_config
from kvatlas.configs.plain import plain
from kvatlas.configs.schema import KVAtlasConfig, WeightsConfig
from kvatlas.configs.secrets import masked

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
SERVERS = (
    "endpoints: {static: [{name: a, address: 'h:1'}, {name: b, address: 'i:1', metrics: 'http://u:p@i/m'}]}"
)


def load(folder: Path, text: str) -> KVAtlasConfig:
    file = folder / "config.yaml"
    file.write_text(HEAD + text)
    return load_config(file)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        pytest.param("", "weights: {queue: 3}", "weights.queue: 2 -> 3", id="number"),
        pytest.param("", "metricsScrape: {interval: 1s}", "metricsScrape.interval: '50ms' -> '1s'", id="duration"),
        pytest.param(
            "", "tiers: [{name: gpu, media: [GPU], lruCapacityPerServer: 9}, {name: cpu, media: [CPU, CPU_PINNED, CPU_TIER1, LMCACHE-L1]},"
            " {name: storage, media: [STORAGE, FS, OBJ, DISK, EXTERNAL, SHARED_STORAGE, CPU_TIER2]}]",
            "tiers[gpu].lruCapacityPerServer: 'auto' -> 9", id="entry",
        ),
        pytest.param(
            SERVERS, SERVERS.replace("h:1", "h:2"), "endpoints.static[a].address: 'h:1' -> 'h:2'", id="endpoint_moved"
        ),
        pytest.param(
            "", "endpoints: {static: [{name: a, address: 'h:1'}]}",
            "endpoints.static[a]: absent -> {name: 'a', address: 'h:1', dataParallelSize: 1}", id="endpoint_added",
        ),
        pytest.param(
            SERVERS, SERVERS.replace("u:p", "u:q"),
            "endpoints.static[b].metrics: 'http://***@i/m' -> 'http://***@i/m'", id="secret",
        ),
        pytest.param(
            "", "metricsScrape: {engines: {my.engine: {waiting: w}}}",
            "metricsScrape.engines[\"my.engine\"]: absent -> {waiting: 'w'}", id="odd_key",
        ),
        pytest.param(
            "tiers: [{name: gpu}, {name: cpu}]", "tiers: [{name: cpu}, {name: gpu}]",
            "tiers: ['gpu', 'cpu'] -> ['cpu', 'gpu']", id="order",
        ),
        pytest.param(
            "plugins: [{type: queue-scorer}, {type: running-requests-size-scorer, name: r}]\n"
            "schedulingProfiles: [{plugins: [{pluginRef: queue-scorer}, {pluginRef: r, weight: 2}]}]",
            "plugins: [{type: running-requests-size-scorer, name: r}, {type: queue-scorer}]\n"
            "schedulingProfiles: [{plugins: [{pluginRef: queue-scorer, weight: 2.5}, {pluginRef: r, weight: 2}]}]",
            "plugins: ['queue-scorer', 'r'] -> ['r', 'queue-scorer']; "
            "schedulingProfiles[default].plugins[queue-scorer].weight: 1 -> 2.5", id="plugins",
        ),
        pytest.param(
            "weights: {queue: 1}", "plugins: [{type: queue-scorer}]",
            "policy: 'weights' -> absent; "
            "weights: {queue: 1, kvCacheUtilization: 2, gpuPrefixCache: 1, cpuPrefixCache: 1} -> absent; "
            "plugins: absent -> [{type: 'queue-scorer'}]; schedulingProfiles: absent -> []", id="plugins_for_weights",
        ),
        pytest.param("", "model: {names: [a, b]}", "model.names: [] -> ['a', 'b']", id="texts"),
        pytest.param("", f"model: {{names: [{'x' * 200}]}}", f"model.names: [] -> ['{'x' * 118}...", id="long"),
    ],
)  # fmt: skip
def test_change_has_path_and_both_values(tmp_path: Path, old: str, new: str, told: str) -> None:
    found = changes(load(tmp_path, old), load(tmp_path, new))

    assert "; ".join(map(str, found)) == told


def test_order_of_endpoints_is_not_a_change(tmp_path: Path) -> None:
    servers = yaml.safe_load(SERVERS)
    servers["endpoints"]["static"].reverse()

    assert changes(load(tmp_path, SERVERS), load(tmp_path, yaml.safe_dump(servers))) == []


@pytest.mark.parametrize(
    ("text", "is_live"),
    [
        pytest.param("weights: {queue: 3}", True, id="weights"),
        pytest.param("metricsScrape: {staleAfter: 3s}", True, id="scraping"),
        pytest.param("events: {trustCredit: {stale: 0.1}}", True, id="trust_credit"),
        pytest.param("events: {port: 1}", True, id="event_port"),
        pytest.param("endpoints: {static: [{name: a, address: 'h:1'}]}", True, id="endpoints"),
        pytest.param("endpoints: {file: x.yaml}", True, id="endpoints_file"),
        pytest.param("plugins: [{type: queue-scorer}]", True, id="plugins"),
        pytest.param("admission: {queueDepthThreshold: 9}", True, id="admission"),
        pytest.param("extProc: {maxPendingRequests: 9}", False, id="streams"),
        pytest.param("events: {topicPrefix: x}", False, id="topic_prefix"),
        pytest.param("events: {mode: bind}", False, id="event_mode"),
        pytest.param("server: {rest: ''}", False, id="listener"),
        pytest.param("model: {names: [a]}", False, id="model"),
        pytest.param("index: {hashSeed: 1}", False, id="seed"),
        pytest.param("tiers: [{name: gpu, media: [GPU]}]", False, id="tiers"),
    ],
)
def test_key_is_live_or_needs_a_restart(tmp_path: Path, text: str, is_live: bool) -> None:
    found = changes(load(tmp_path, ""), load(tmp_path, text))

    assert found
    assert {change.is_live for change in found} == {is_live}


def test_live_keys_are_keys_of_the_schema() -> None:
    for path in LIVE:
        kind: inspect.Type = inspect.type_info(KVAtlasConfig)
        for step in path:
            if step == ENTRY:
                assert isinstance(kind, inspect.VarTupleType)
                kind = kind.item_type
            else:
                assert isinstance(kind, inspect.StructType)
                (kind,) = (field.type for field in kind.fields if field.encode_name == step)


def test_plain_data_is_like_a_file_and_masked_data_has_no_secrets(tmp_path: Path) -> None:
    config = load(tmp_path, SERVERS)

    shown = tmp_path / "shown.yaml"
    shown.write_text(yaml.safe_dump(plain(config)))
    assert load_config(shown) == config
    shown.write_text(yaml.safe_dump(masked(plain(config))))
    assert "u:p" not in shown.read_text()
    assert [str(change) for change in changes(config, load_config(shown))] == [
        "endpoints.static[b].metrics: 'http://***@i/m' -> 'http://***@i/m'"
    ]


WEIGHTS = st.builds(
    WeightsConfig,
    queue=st.integers(0, 2),
    kv_cache_utilization=st.integers(0, 2),
    gpu_prefix_cache=st.integers(0, 2),
    cpu_prefix_cache=st.integers(0, 2),
)


@given(old=WEIGHTS, new=WEIGHTS)
def test_differences_are_the_keys_that_differ(old: WeightsConfig, new: WeightsConfig) -> None:
    found = changes(*(KVAtlasConfig(api_version="kvatlas/v1", weights=each) for each in (old, new)))

    differing = {
        name: getattr(new, attribute)
        for name, attribute in (
            ("queue", "queue"),
            ("kvCacheUtilization", "kv_cache_utilization"),
            ("gpuPrefixCache", "gpu_prefix_cache"),
            ("cpuPrefixCache", "cpu_prefix_cache"),
        )
        if getattr(old, attribute) != getattr(new, attribute)
    }
    assert {change.path[-1]: change.new for change in found} == differing
