"""Configurations of workers: they differ in ports, snapshots and traces, and one that starts again has that of the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvatlas.app import worker
from kvatlas.app.worker import KeptConfig, present_config, worker_config
from kvatlas.app.workers.ports import SharedPorts
from kvatlas.configs.errors import ConfigError
from kvatlas.configs.listeners import ServerConfig
from kvatlas.configs.observers import RecorderConfig
from kvatlas.configs.schema import KVAtlasConfig, SnapshotConfig
from kvatlas.routing.plan.config_files import ConfigFiles

SERVER = ServerConfig(ext_proc="127.0.0.1:0", health="", rest="[::1]:8080", metrics="127.0.0.1:0", workers=4)
CONFIG = KVAtlasConfig(
    api_version="kvatlas/v1",
    server=SERVER,
    snapshot=SnapshotConfig(file="/var/lib/kvatlas"),
    recorder=RecorderConfig(folder="/traces"),
)


@pytest.fixture
def shared() -> Iterator[SharedPorts]:
    ports = SharedPorts(SERVER)
    yield ports
    ports.close()


@pytest.mark.parametrize(
    ("worker", "rest", "snapshot", "traces"),
    [
        pytest.param(0, "[::1]:8080", "/var/lib/kvatlas", "/traces", id="first"),
        pytest.param(3, "[::1]:8083", "/var/lib/kvatlas.3", "/traces.3", id="last"),
    ],
)
def test_worker_has_ports_a_snapshot_and_traces_of_its_own(
    worker: int, rest: str, snapshot: str, traces: str, shared: SharedPorts
) -> None:
    config = worker_config(CONFIG, worker, shared)

    server = config.server
    assert server.ext_proc == shared.applied(SERVER).ext_proc != SERVER.ext_proc
    assert (server.rest, config.snapshot.file) == (rest, snapshot)
    assert config.recorder.folder == traces
    assert (server.health, server.metrics) == ("", "127.0.0.1:0")
    same = {"server": SERVER, "snapshot": CONFIG.snapshot, "recorder": CONFIG.recorder}
    assert msgspec.structs.replace(config, **same) == CONFIG


def test_worker_without_snapshot_and_traces_keeps_none(shared: SharedPorts) -> None:
    config = msgspec.structs.replace(CONFIG, snapshot=SnapshotConfig(), recorder=RecorderConfig())

    own = worker_config(config, 1, shared)

    assert (own.snapshot.file, own.recorder.folder) == ("", "")


HEAD = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"


@pytest.mark.parametrize(
    ("changed", "queue", "seed"),
    [
        pytest.param("weights: {queue: 5}", 5, 1, id="of_the_file"),
        pytest.param("weights: {queue: -1}", 3, 1, id="unusable_file"),
        pytest.param("weights: {queue: 5}\nindex: {hashSeed: 2}", 3, 1, id="needs_a_restart_of_all"),
    ],
)
def test_worker_that_starts_again_has_what_the_others_accepted(
    changed: str, queue: float, seed: int, tmp_path: Path
) -> None:
    file = tmp_path / "kvatlas.yaml"
    file.write_text(f"{HEAD}weights: {{queue: 3}}\nindex: {{hashSeed: 1}}\n")
    files, refused = ConfigFiles(file), list[ConfigError]()
    before = files.load().config
    file.write_text(f"{HEAD}{changed}\n" + ("" if "index" in changed else "index: {hashSeed: 1}\n"))

    found = present_config(files, before, on_refusal=refused.append)

    assert (found.weights.queue, found.index.hash_seed) == (queue, seed)
    assert len(refused) == (changed == "weights: {queue: -1}")


def look(kept: KeptConfig) -> None:
    """Have the parent look until a file that was written is settled."""
    for _ in range(2):
        kept.look(is_signalled=False)


@pytest.mark.parametrize("changed", ["weights: {queue: -1}", "index: {hashSeed: 2}"])
def test_worker_that_starts_again_has_the_last_usable_files(changed: str, tmp_path: Path) -> None:
    file = tmp_path / "kvatlas.yaml"
    file.write_text(HEAD)
    files = ConfigFiles(file)
    kept = KeptConfig(files.load().config, files)
    look(kept)
    file.write_text(f"{HEAD}weights: {{queue: 5}}\n")
    look(kept)
    file.write_text(f"{HEAD}{changed}\n")
    look(kept)

    found = present_config(files, kept.config, on_refusal=lambda _: None)

    assert (found.weights.queue, found.index.hash_seed) == (5, 0)


def test_worker_that_starts_again_has_the_last_usable_list_of_endpoints(tmp_path: Path) -> None:
    file, listed = tmp_path / "kvatlas.yaml", tmp_path / "endpoints.yaml"
    file.write_text(f"{HEAD}weights: {{queue: 3}}\n")
    listed.write_text("[{name: a, address: 10.0.0.1:8000}]")
    files = ConfigFiles(file)
    kept = KeptConfig(files.load().config, files)
    file.write_text(f"{HEAD}endpoints: {{file: endpoints.yaml}}\n")
    look(kept)
    assert [each.name for each in kept.config.endpoints.static] == ["a"]
    listed.write_text("[{name: a, address: 10.0.0.1:8000}, {name: b, address: 10.0.0.2:8000}]")
    look(kept)
    listed.write_text("[{name: a")
    file.write_text(f"{HEAD}endpoints: {{file: endpoints.yaml}}\nweights: {{queue: 7}}\n")
    look(kept)

    found = present_config(files, kept.config, on_refusal=lambda _: None)

    assert [each.name for each in found.endpoints.static] == ["a", "b"]
    assert found.weights.queue == 7


def test_parent_goes_on_while_a_file_does_not_respond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "LOOK_S", 0.01)
    file, held = tmp_path / "kvatlas.yaml", tmp_path / "held"
    file.write_text(f"{HEAD}weights: {{queue: 3}}\n")
    files = ConfigFiles(file)
    kept = KeptConfig(files.load().config, files)
    os.mkfifo(held)
    held.rename(file)  # its content comes when somebody writes it

    for _ in range(3):
        kept.look(is_signalled=True)
    assert kept.config.weights.queue == 3
    assert [each.message for each in caplog.records if "do not respond" in each.message] == [
        "the configuration files do not respond; workers that are started again have what was read before"
    ]

    written = tmp_path / "written.yaml"
    written.write_text(f"{HEAD}weights: {{queue: 5}}\n")
    with file.open("w") as pipe:
        written.rename(file)
        pipe.write(f"{HEAD}weights: {{queue: 4}}\n")
    while kept.config.weights.queue != 5:  # the signals of meanwhile are obeyed
        kept.look(is_signalled=False)


def test_files_that_are_not_followed_wait_for_a_signal_in_a_worker_that_starts_again_too(
    tmp_path: Path,
) -> None:
    file = tmp_path / "kvatlas.yaml"
    file.write_text(f"{HEAD}weights: {{queue: 3}}\n")
    files = ConfigFiles(file, follows=False)
    kept = KeptConfig(files.load().config, files)
    file.write_text(f"{HEAD}weights: {{queue: 5}}\n")
    look(kept)
    assert present_config(files, kept.config, on_refusal=lambda _: None).weights.queue == 3

    kept.look(is_signalled=True)
    assert present_config(files, kept.config, on_refusal=lambda _: None).weights.queue == 5
