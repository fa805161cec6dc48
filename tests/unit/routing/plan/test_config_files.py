"""A configuration file with what belongs to it, and when it counts as changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kvatlas.configs.discovery import with_listed_endpoints
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.schema import EndpointsConfig, KVAtlasConfig
from kvatlas.routing.plan.config_files import ConfigFiles, FileWatch

HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"


def names(config: KVAtlasConfig) -> list[str]:
    return [endpoint.name for endpoint in config.endpoints.static]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A configuration file and the file with the servers it names."""
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


# -- watching ----------------------------------------------------------------------------------------------------------


def looks(watch: FileWatch, count: int = 3) -> list[bool]:
    return [watch.look() for _ in range(count)]


def write(path: Path, text: str) -> None:
    """In place, with another time stamp whatever the file system's resolution."""
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(text)
    os.utime(path, ns=(stamp + 10**9, stamp + 10**9))


def replace(path: Path, text: str) -> None:
    """As editors and `mv` do."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


def swap_config_map(path: Path, text: str) -> None:
    """As the kubelet updates a mounted ConfigMap: `..data` is a link to a folder, and is replaced by another."""
    folder = path.parent / f"..{text}"
    folder.mkdir()
    (folder / path.name).write_text(text)
    (path.parent / "..tmp").symlink_to(folder.name)
    (path.parent / "..tmp").rename(path.parent / "..data")


def swap_folder(path: Path, text: str) -> None:
    """The folder of the file is a link that is replaced."""
    folder = path.parent.parent / text
    folder.mkdir()
    (folder / path.name).write_text(text)
    link = path.parent.parent / "next"
    link.symlink_to(folder)
    link.rename(path.parent)


@pytest.fixture(params=["in_place", "replaced", "config_map", "folder"])
def changing(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[Path, str], None]]:
    """A file that says `one`, and how it is changed."""
    path = tmp_path / "file.yaml"
    match request.param:
        case "config_map":
            swap_config_map(path, "one")
            path.symlink_to("..data/file.yaml")
            return path, swap_config_map
        case "folder":
            (tmp_path / "one").mkdir()
            (tmp_path / "current").symlink_to(tmp_path / "one")
            path = tmp_path / "current" / "file.yaml"
            write(path, "one")
            return path, swap_folder
        case way:
            write(path, "one")
            return path, write if way == "in_place" else replace


def test_change_is_told_once_however_it_is_made(changing: tuple[Path, Callable[[Path, str], None]]) -> None:
    path, change = changing
    watch = FileWatch(path)
    assert looks(watch) == [False, True, False]

    change(path, "two")

    assert path.read_text() == "two"
    assert looks(watch) == [False, True, False]


def test_file_is_told_of_when_it_has_come_to_rest(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    write(path, "")
    watch = FileWatch(path)
    told: list[bool] = looks(watch)
    for text in ("a", "ab", "abc"):
        write(path, text)
        told.append(watch.look())
    told += looks(watch)

    assert told == [False, True, False, False, False, False, True, False, False]


def test_change_that_is_taken_back_between_two_looks_is_told_by_its_time(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    write(path, "one")
    watch = FileWatch(path)
    looks(watch)
    write(path, "two")
    write(path, "one")

    assert looks(watch) == [False, True, False]


def test_file_that_goes_and_comes_is_told_of_both_times(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    watch = FileWatch(path)
    assert looks(watch) == [False, True, False]
    write(path, "one")
    assert looks(watch) == [False, True, False]
    path.unlink()
    assert looks(watch) == [False, True, False]
