"""The YAML files in `configs/`: complete, commented, equal to the schema's defaults, and loadable."""

from __future__ import annotations

import importlib.resources
import re
from pathlib import Path
from typing import cast

import msgspec
import pytest
import yaml

from kvatlas.configs.endpoints import endpoint_addresses
from kvatlas.configs.loader import load_config
from kvatlas.configs.schema import KVAtlasConfig, StaticEndpoint, TierConfig
from kvatlas.configs.scraping import EngineConfig

FOLDER = Path(str(importlib.resources.files("kvatlas.configs")))
DEFAULT = FOLDER / "default.yaml"
_EXAMPLE = re.compile(r"^(\s*)#(?! )(?=\S)|^(\s*)#(?=  )", flags=re.MULTILINE)


def mapping(value: object) -> dict[str, object]:
    assert isinstance(value, dict)
    return cast("dict[str, object]", value)


def schema_keys(section: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(section)}


def written_keys() -> dict[str, object]:
    return mapping(yaml.safe_load(DEFAULT.read_text()))


def with_examples_uncommented() -> str:
    """Return the default file with its examples uncommented, instead of the empty lists above them."""
    text = _EXAMPLE.sub(lambda match: match[1] or match[2] or "", DEFAULT.read_text())
    return text.replace("  static: []\n", "").replace("engines: {} ", "# ")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.name)
def test_every_shipped_file_loads(file: Path) -> None:
    assert load_config(file).api_version == "kvatlas/v1"


def test_default_file_equals_the_defaults_of_the_schema() -> None:
    assert load_config(DEFAULT) == KVAtlasConfig(api_version="kvatlas/v1")


def test_default_file_holds_every_key_of_the_schema() -> None:
    written = written_keys()

    assert set(written) == schema_keys(KVAtlasConfig) | {"kind"}
    for field in msgspec.structs.fields(KVAtlasConfig):
        if isinstance(field.default, msgspec.Struct):
            assert set(mapping(written[field.encode_name])) == schema_keys(type(field.default)), (
                field.encode_name
            )
    for tier in cast("list[object]", written["tiers"]):
        assert set(mapping(tier)) == schema_keys(TierConfig)


def test_default_file_shows_every_key_of_an_endpoint(tmp_path: Path) -> None:
    example = tmp_path / "example.yaml"
    example.write_text(with_examples_uncommented())

    static = mapping(mapping(yaml.safe_load(example.read_text()))["endpoints"])["static"]
    (endpoint,) = cast("list[object]", static)
    assert set(mapping(endpoint)) == schema_keys(StaticEndpoint)
    assert load_config(example).endpoints.static[0].labels == {"zone": "a"}


def test_default_file_shows_every_key_of_an_engine(tmp_path: Path) -> None:
    example = tmp_path / "example.yaml"
    example.write_text(with_examples_uncommented())

    engines = mapping(mapping(yaml.safe_load(example.read_text()))["metricsScrape"])["engines"]
    ((_, engine),) = mapping(engines).items()
    assert set(mapping(engine)) == schema_keys(EngineConfig)
    assert load_config(example).metrics_scrape.engines["my-engine"].waiting == "my_requests{state=queued}"


def test_given_addresses_of_the_example_equal_the_derived_ones(tmp_path: Path) -> None:
    example = tmp_path / "example.yaml"
    example.write_text(with_examples_uncommented())
    config = load_config(example)
    (written,) = config.endpoints.static

    derived = StaticEndpoint(name=written.name, address=written.address, block_size=written.block_size)
    assert endpoint_addresses(written, config.events) == endpoint_addresses(derived, config.events)


def test_every_key_of_the_default_file_has_a_comment() -> None:
    lines = DEFAULT.read_text().splitlines()

    bare = [
        line
        for above, line in zip(["", *lines], lines, strict=False)
        if re.match(r"\s*(#  ?)?[ -]*\w+:", line) and " # " not in line and not above.lstrip().startswith("#")
    ]
    assert bare == []
