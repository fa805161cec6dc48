"""Series of engines: their syntax, and the possible engines of an endpoint."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.engines import ENGINES, MAX_ATTRIBUTES, EngineCatalog, Selector
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import load_config
from kvatlas.configs.scraping import MetricsScrapeConfig


def catalog(**config: object) -> EngineCatalog:
    return EngineCatalog(msgspec.convert(config, MetricsScrapeConfig))


@pytest.mark.parametrize(
    ("text", "name", "labels"),
    [
        pytest.param("vllm:num_requests_waiting", "vllm:num_requests_waiting", (), id="name"),
        pytest.param("m{a=b}", "m", (("a", "b"),), id="label"),
        pytest.param('m{a="b c"}', "m", (("a", "b c"),), id="quotes"),
        pytest.param('m{a=b, c="d"}', "m", (("a", "b"), ("c", "d")), id="two_labels"),
    ],
)
def test_series_is_parsed(text: str, name: str, labels: tuple[tuple[str, str], ...]) -> None:
    assert Selector.parse(text) == Selector(name, labels)


@pytest.mark.parametrize(
    "text",
    ["", "a b", "1a", "m{", "m{}", "m}", "m{a}", "m{a=}", "m{a=b", "m{a=b}x", 'm{a="b}', "m{a=b,}", "m{=b}"],
)
def test_invalid_series_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="expected a series such as name or name"):
        Selector.parse(text)


@pytest.mark.parametrize(
    ("config", "labels", "names"),
    [
        pytest.param({}, {}, list(ENGINES), id="auto"),
        pytest.param({"engine": "sglang"}, {}, ["sglang"], id="default"),
        pytest.param({"engine": "sglang"}, {"llm-d.ai/engine-type": "vllm"}, ["vllm"], id="label"),
        pytest.param({}, {"inference.networking.k8s.io/engine-type": "triton"}, ["triton"], id="older_label"),
        pytest.param(
            {},
            {"inference.networking.k8s.io/engine-type": "triton", "llm-d.ai/engine-type": "vllm"},
            ["vllm"],
            id="newer_label_first",
        ),
        pytest.param({"engine": "vllm"}, {"llm-d.ai/engine-type": "unheard"}, ["vllm"], id="unknown_label"),
        pytest.param({}, {"llm-d.ai/engine-type": "unheard"}, list(ENGINES), id="unknown_label_and_auto"),
        pytest.param({"engines": {"my": {"waiting": "w"}}}, {}, ["my", *ENGINES], id="own_engine_first"),
    ],
)
def test_possible_engines_follow_from_label_and_configuration(
    config: dict[str, object], labels: dict[str, str], names: list[str]
) -> None:
    assert list(catalog(**config).of(labels)) == names


def test_configured_series_replace_known_ones() -> None:
    own = {"waiting": "w", "kvUtilization": "", "cacheInfo": "", "blockSize": "b{x=y}", "numBlocksLabel": "n"}

    series = catalog(engine="vllm", engines={"vllm": own}).of({})["vllm"]

    assert series.waiting == (Selector("w"),)
    assert series.running == ENGINES["vllm"].running
    assert (series.kv_utilization, series.cache_info) == ((), ())
    assert series.block_size == (Selector("b", (("x", "y"),)),)
    assert (series.block_size_label, series.num_blocks_label) == ("block_size", "n")


def test_default_idle_interval_is_half_of_stale_after_and_at_most_a_second() -> None:
    texts: tuple[dict[str, str], ...] = (
        {},
        {"idleInterval": "500ms"},
        {"interval": "3s", "staleAfter": "4s"},
        {"staleAfter": "1m"},
    )
    found = [
        msgspec.convert(
            text, MetricsScrapeConfig, dec_hook=lambda kind, value: kind.parse(value)
        ).idle_interval_s
        for text in texts
    ]

    assert found == [1.0, 0.5, 3.0, 1.0]


def test_too_many_attributes_are_refused(tmp_path: Path) -> None:
    attributes = {f"a{number}": "series" for number in range(MAX_ATTRIBUTES + 1)}
    config = {"metricsScrape": {"engines": {"vllm": {"attributes": attributes | {"bad": "no series"}}}}}
    file = tmp_path / "kvatlas.yaml"
    file.write_bytes(msgspec.yaml.encode({"kind": "KVAtlasConfig", "apiVersion": "kvatlas/v1"} | config))

    with pytest.raises(ConfigError) as raised:
        load_config(file)

    assert "metricsScrape.engines: found 66 attributes, expected at most 64" in str(raised.value)
    assert "metricsScrape.engines.vllm.attributes.bad: found 'no series'" in str(raised.value)
