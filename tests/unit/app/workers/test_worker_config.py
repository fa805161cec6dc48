"""The differences between workers' configurations: ports, snapshots and traces, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from kvatlas.app.worker import worker_config
from kvatlas.app.workers.ports import SharedPorts
from kvatlas.configs.listeners import ServerConfig
from kvatlas.configs.observers import RecorderConfig
from kvatlas.configs.schema import KVAtlasConfig, SnapshotConfig

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
