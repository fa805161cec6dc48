"""`token-producer` of the reference as sections of a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.configs.errors import ConfigError
from kvatlas.configs.loader import load_file
from kvatlas.configs.schema import KVAtlasConfig, RemoteTokenizerConfig

NOWHERE = RemoteTokenizerConfig()


def loaded(folder: Path, *producers: dict[str, Any], base: dict[str, Any] | None = None) -> KVAtlasConfig:
    """Load a file of the reference with these producers, onto another file if there is one."""
    data = {
        "kind": "EndpointPickerConfig",
        "apiVersion": "llm-d.ai/v1alpha1",
        "plugins": [*producers, {"type": "queue-scorer"}],
    }
    own = None
    if base is not None:
        file = folder / "kvatlas.yaml"
        file.write_text(yaml.safe_dump({"kind": "KVAtlasConfig", "apiVersion": "kvatlas/v1"} | base))
        own = load_file(file).config
    (folder / "picker.yaml").write_text(yaml.safe_dump(data))
    return load_file(folder / "picker.yaml", base=own).config


def producer(name: str = "token-producer", **parameters: Any) -> dict[str, Any]:
    return {"type": name, "parameters": parameters}


@pytest.mark.parametrize(
    ("producers", "url"),
    [
        pytest.param([producer()], "", id="nothing_said"),
        pytest.param([producer(modelName="m")], "http://localhost:8000", id="model"),
        pytest.param([producer(modelName="m", estimate={})], "", id="estimate_of_a_model"),
        pytest.param([producer(vllm={"url": "http://render:8000", "timeout": "5s"})], "http://render:8000", id="url"),
        pytest.param([producer("tokenizer", vllm={"url": "https://x"})], "https://x", id="older_name"),
        pytest.param([producer(vllm={"url": "http://<service>:8000"})], "http://<service>:8000", id="any_host"),
        pytest.param([producer(vllm={"url": "${URL}"})], "", id="no_url"),
        pytest.param([producer(estimate={}), producer(modelName="m")], "http://localhost:8000", id="second"),
    ],
)  # fmt: skip
def test_server_of_a_producer_computes_token_ids(
    tmp_path: Path, producers: list[dict[str, Any]], url: str
) -> None:
    producers = [each | {"name": f"p{number}"} for number, each in enumerate(producers)]
    config = loaded(tmp_path, *producers)

    wanted = RemoteTokenizerConfig(url=url, media=True) if url else NOWHERE
    assert config.model.remote_tokenizer == wanted
    assert [plugin.type for plugin in config.plugins] == ["queue-scorer"]


def test_estimates_of_a_producer_are_those_of_the_configuration(tmp_path: Path) -> None:
    config = loaded(tmp_path, producer(estimate={"image": {"mode": "static", "static": {"staticToken": 9}}}))

    assert config.tokenization.estimate.image.static.static_token == 9


@pytest.mark.parametrize(
    ("base", "url", "tokens"),
    [
        pytest.param({}, "http://localhost:8000", 9, id="nothing_of_its_own"),
        pytest.param({"model": {"tokenizer": "."}}, "", 9, id="tokenizer"),
        pytest.param({"model": {"remoteTokenizer": {"url": "endpoints"}}}, "endpoints", 9, id="remote_tokenizer"),
        pytest.param(
            {"tokenization": {"estimate": {"image": {"static": {"staticToken": 5}}}}},
            "http://localhost:8000", 5, id="estimate",
        ),
    ],
)  # fmt: skip
def test_own_file_wins(tmp_path: Path, base: dict[str, Any], url: str, tokens: int) -> None:
    estimate = {"image": {"static": {"staticToken": 9}}}
    config = loaded(
        tmp_path, producer(modelName="m", vllm={}), producer("tokenizer", estimate=estimate), base=base
    )

    assert config.model.remote_tokenizer.url == url
    assert config.tokenization.estimate.image.static.static_token == tokens


def test_wrong_parameter_is_named_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plugins\[0\].parameters.estimate.image.mode"):
        loaded(tmp_path, producer(estimate={"image": {"mode": "guess"}}))
