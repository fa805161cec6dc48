"""Configurations of workers: they differ in ports, snapshots and traces, and one that starts again has that of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvatlas.app.worker import present_config, worker_config
from kvatlas.app.workers.ports import SharedPorts
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
    head = "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n"
    file = tmp_path / "kvatlas.yaml"
    file.write_text(f"{head}weights: {{queue: 3}}\nindex: {{hashSeed: 1}}\n")
    files = ConfigFiles(file)
    before = files.load().config
    file.write_text(f"{head}{changed}\n" + ("" if "index" in changed else "index: {hashSeed: 1}\n"))

    found = present_config(files, before)

    assert (found.weights.queue, found.index.hash_seed) == (queue, seed)
