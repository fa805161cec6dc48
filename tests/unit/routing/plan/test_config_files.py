"""A configuration file with the files and flags that belong to it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from kvatlas.configs.discovery import with_listed_endpoints
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.listeners import AuthConfig, ServerConfig, TlsConfig
from kvatlas.configs.reading import GivenText
from kvatlas.configs.schema import EndpointsConfig, KVAtlasConfig
from kvatlas.routing.plan.config_files import ConfigFiles, ConfigFollower
from kvatlas.routing.plan.live import LiveConfig
from kvatlas.routing.plan.metrics import ConfigMetrics
from support.waiting import PATIENCE_S

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


def test_text_stands_in_place_of_the_file_of_plugins(files: tuple[Path, Path]) -> None:
    loaded = ConfigFiles(files[0], GivenText("--config-text", EPP)).load()

    assert names(loaded.config) == ["a"]
    assert [plugin.type for plugin in loaded.config.plugins] == ["queue-scorer"]


def test_error_in_a_text_is_placed_by_its_name_and_line() -> None:
    with pytest.raises(ConfigError, match=r"^--config-text: line 3, plugins\[0\]\.type: found 'nothing'"):
        ConfigFiles(None, GivenText("--config-text", EPP.replace("queue-scorer", "nothing"))).load()


def test_text_of_a_command_line_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(ConfigError, match="--config-text: not a UTF-8 text"):
        ConfigFiles(None, GivenText("--config-text", EPP + "\udcff")).load()


EPP = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"


@pytest.mark.parametrize(
    ("config", "picker", "is_reference"),
    [
        pytest.param(None, None, True, id="flags_alone"),
        pytest.param(None, EPP, True, id="reference_file_by_its_flag"),
        pytest.param(EPP, None, False, id="reference_file_by_our_flag"),
        pytest.param(HEAD, EPP, False, id="both"),
        pytest.param(None, HEAD, False, id="our_file_by_its_flag"),
    ],
)
def test_process_behaves_as_the_reference_when_nothing_of_ours_is_given(
    config: str | None, picker: str | None, is_reference: bool, tmp_path: Path
) -> None:
    paths: list[Path | None] = []
    for name, text in (("config.yaml", config), ("picker.yaml", picker)):
        if text is not None:
            (tmp_path / name).write_text(text)
        paths.append(tmp_path / name if text is not None else None)

    loaded = ConfigFiles(paths[0], paths[1]).load().config

    reference = ServerConfig(
        rest="", tls=TlsConfig(self_signed=True, http=False), auth=AuthConfig(metrics_review=True)
    )
    assert loaded.server == (reference if is_reference else ServerConfig())
    assert loaded.ext_proc.compat == ("llm-d" if is_reference else "none")
    assert bool(loaded.scheduling_profiles) == (config is picker is None)


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
    "other",
    [
        "endpoints: {file: others.yaml}",
        "endpoints: {file: servers.yaml}\nevents: {port: 1}",
        # the reference's format has whole URLs made of its `metricsHost`
        "endpoints: {file: servers.yaml}\nmetricsScrape: {page: stats}",
    ],
)
def test_endpoints_are_read_where_another_file_or_other_ports_or_pages_are_named(
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


def live_of(files: ConfigFiles, queues: list[float]) -> LiveConfig:
    """Return a live configuration that adds the weight of each one that it puts in force."""

    async def settle() -> None:
        return

    return LiveConfig(
        files.load().config,
        paths=files.paths,
        switch=lambda plan, _: queues.append(plan.config.weights.queue),
        settle=settle,
        metrics=ConfigMetrics(CollectorRegistry()),
    )


async def test_file_that_is_not_followed_is_loaded_by_a_signal_alone(tmp_path: Path) -> None:
    path, queues = tmp_path / "kvatlas.yaml", list[float]()
    path.write_text(f"{HEAD}weights: {{queue: 2}}")
    files = ConfigFiles(path, follows=False)
    live = live_of(files, queues)
    follower = ConfigFollower(files, live)
    await follower.look()
    path.write_text(f"{HEAD}weights: {{queue: 33}}")
    await follower.look()
    await follower.look()
    assert queues == []

    await follower.reload()
    assert queues == [33.0]


class Reload(asyncio.Event):
    """An event that says when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_awaited = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.is_awaited.set()
        return await super().wait()


@pytest.mark.parametrize("n_turns", [pytest.param(n, id=f"{n}_turns_later") for n in range(4)])
async def test_watch_ends_though_it_was_told_to_load_a_moment_before(tmp_path: Path, n_turns: int) -> None:
    path = tmp_path / "kvatlas.yaml"
    path.write_text(f"{HEAD}weights: {{queue: 2}}")
    files, reload = ConfigFiles(path, follows=False), Reload()
    watching = asyncio.create_task(ConfigFollower(files, live_of(files, [])).watch(reload))
    await reload.is_awaited.wait()

    reload.set()
    for _ in range(n_turns):
        await asyncio.sleep(0)
    watching.cancel()
    await asyncio.wait([watching], timeout=PATIENCE_S)

    assert watching.cancelled()
