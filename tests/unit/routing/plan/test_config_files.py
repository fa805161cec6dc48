"""A configuration file with the files and flags that belong to it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.discovery import with_listed_endpoints
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.schema import EndpointsConfig, KVAtlasConfig
from kvatlas.routing.plan.config_files import ConfigFiles

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"


def names(config: KVAtlasConfig) -> list[str]:
    return [endpoint.name for endpoint in config.endpoints.static]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Write a configuration file, and the file with the servers that it names."""
    config, servers = tmp_path / "kvatlas.yaml", tmp_path / "servers.yaml"
    config.write_text(f"{HEAD}endpoints: {{file: servers.yaml}}\n")
    servers.write_text("[{name: a, address: 'h:1'}]")
    return config, servers


def test_what_the_command_line_says_takes_the_place_of_the_files(tmp_path: Path) -> None:
    path = tmp_path / "kvatlas.yaml"
    path.write_text(f"{HEAD}server: {{rest: '127.0.0.1:1', metrics: ''}}\n")

    def with_flags(config: KVAtlasConfig) -> KVAtlasConfig:
        server = msgspec.structs.replace(config.server, rest="127.0.0.1:2", health="")
        return msgspec.structs.replace(config, server=server)

    server = ConfigFiles(path, with_flags=with_flags).load().config.server

    assert (server.rest, server.metrics, server.health) == ("127.0.0.1:2", "", "")


def test_listed_endpoints_are_read_with_the_file(files: tuple[Path, Path]) -> None:
    config = ConfigFiles(files[0]).load().config

    assert names(config) == ["a"]
    assert config.endpoints.file == str(files[1])


def test_endpoints_in_force_count_where_the_same_file_is_named(files: tuple[Path, Path]) -> None:
    file = ConfigFiles(files[0])
    before = file.load().config
    files[1].write_text("broken")

    assert names(file.load(before).config) == ["a"]
    with pytest.raises(ConfigError, match=r"servers\.yaml: line 1: found 'broken'"):
        with_listed_endpoints(before)


@pytest.mark.parametrize(
    "other", ["endpoints: {file: others.yaml}", "endpoints: {file: servers.yaml}\nevents: {port: 1}"]
)
def test_endpoints_are_read_where_another_file_or_other_ports_are_named(
    files: tuple[Path, Path], other: str
) -> None:
    file = ConfigFiles(files[0])
    before = file.load().config
    for path in (files[1], files[1].with_name("others.yaml")):
        path.write_text("[{name: b, address: 'h:1'}]")
    files[0].write_text(f"{HEAD}{other}\n")

    assert names(file.load(before).config) == ["b"]


def test_configuration_without_a_list_has_its_own_endpoints(tmp_path: Path) -> None:
    path = tmp_path / "kvatlas.yaml"
    path.write_text(f"{HEAD}endpoints: {{static: [{{name: c, address: 'h:1'}}]}}\n")
    other = KVAtlasConfig(api_version="kvatlas/v1", endpoints=EndpointsConfig(file=""))

    assert names(ConfigFiles(path).load(other).config) == ["c"]
