"""What differs between workers: ports and snapshots, and nothing else."""

from __future__ import annotations

import msgspec
import pytest

from kvatlas.api.workers.worker import worker_config
from kvatlas.configs.listeners import ServerConfig
from kvatlas.configs.schema import KVAtlasConfig, SnapshotConfig

SERVER = ServerConfig(ext_proc="0.0.0.0:9002", health="", rest="[::1]:8080", metrics="127.0.0.1:0", workers=4)
CONFIG = KVAtlasConfig(
    api_version="kvatlas/v1", server=SERVER, snapshot=SnapshotConfig(file="/var/lib/kvatlas")
)


@pytest.mark.parametrize(
    ("worker", "ext_proc", "rest", "snapshot"),
    [
        pytest.param(0, "0.0.0.0:9002", "[::1]:8080", "/var/lib/kvatlas", id="first"),
        pytest.param(3, "0.0.0.0:9005", "[::1]:8083", "/var/lib/kvatlas.3", id="last"),
    ],
)
def test_worker_has_ports_and_a_snapshot_of_its_own(
    worker: int, ext_proc: str, rest: str, snapshot: str
) -> None:
    config = worker_config(CONFIG, worker)

    server = config.server
    assert (server.ext_proc, server.rest, config.snapshot.file) == (ext_proc, rest, snapshot)
    assert (server.health, server.metrics) == ("", "127.0.0.1:0")
    assert msgspec.structs.replace(config, server=SERVER, snapshot=CONFIG.snapshot) == CONFIG


def test_worker_without_snapshot_keeps_none() -> None:
    config = msgspec.structs.replace(CONFIG, snapshot=SnapshotConfig())

    assert worker_config(config, 1).snapshot.file == ""
