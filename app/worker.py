"""One of several workers: its configuration, and its run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import msgspec
import uvloop

from ..configs.address import HostPort
from ..configs.changes import changes
from ..configs.errors import ConfigError
from ..configs.listeners import ServerConfig
from ..configs.observers import RecorderConfig
from ..configs.schema import KVAtlasConfig, SnapshotConfig
from ..routing.plan.config_files import ConfigFiles
from .app import App
from .replicas.pod import Place
from .workers.ports import SharedPorts
from .workers.supervisor import END

log = logging.getLogger(__name__)


def run_worker(
    config: KVAtlasConfig,
    files: ConfigFiles,
    place: Place,
    ports: SharedPorts,
    *,
    on_beat: Callable[[], None],
) -> int:
    """Run a worker until it is signalled to end, and return its exit status. To be called in a process of its own.

    Args:
        config: of all workers, as their parent loaded it.
        files: its source.
        place: of the worker.
        ports: that all workers share.
        on_beat: called while its event loop runs.

    Raises:
        KVAtlasError: as of `App`.
    """

    def own(loaded: KVAtlasConfig) -> KVAtlasConfig:
        return worker_config(files.with_flags(loaded), place.worker, ports)

    own_files = replace(files, with_flags=own)
    started = present_config(own_files, worker_config(config, place.worker, ports))

    async def run() -> int:
        return await App(started, own_files, place=place, on_beat=on_beat).run(ends=(END,))

    return uvloop.run(run())


def present_config(files: ConfigFiles, config: KVAtlasConfig) -> KVAtlasConfig:
    """Return the configuration of a worker that starts: that of the files, unless the other workers refuse it too."""
    try:
        loaded = files.load().config
    except ConfigError as error:
        log.warning("this worker starts with the configuration of its parent: %s", error)
        return config
    return loaded if all(change.is_live for change in changes(config, loaded)) else config


def worker_config(config: KVAtlasConfig, worker: int, ports: SharedPorts) -> KVAtlasConfig:
    """Return the configuration of the worker of that number.

    The ports of REST and metrics are higher by the number, port 0 stays; every worker has its own snapshot and traces.
    """
    server: ServerConfig = ports.applied(config.server)
    if not worker:
        return msgspec.structs.replace(config, server=server)
    snapshot: SnapshotConfig = config.snapshot
    if snapshot.file:
        snapshot = msgspec.structs.replace(snapshot, file=f"{snapshot.file}.{worker}")
    recorder: RecorderConfig = config.recorder
    if recorder.folder:
        recorder = msgspec.structs.replace(recorder, folder=f"{recorder.folder}.{worker}")
    server = msgspec.structs.replace(
        server,
        rest=_moved(server.rest, worker),
        metrics=_moved(server.metrics, worker),
    )
    return msgspec.structs.replace(config, server=server, snapshot=snapshot, recorder=recorder)


def _moved(address: str, by: int) -> str:
    if not address:
        return ""
    where = HostPort.parse(address, lowest_port=0)
    return str(HostPort(where.host, where.port + by if where.port else 0))
