"""One of several workers: its configuration, and its run."""

from __future__ import annotations

from functools import partial

import msgspec
import uvloop

from ..configs.address import HostPort
from ..configs.listeners import ServerConfig
from ..configs.observers import RecorderConfig
from ..configs.schema import KVAtlasConfig, SnapshotConfig
from ..routing.plan.config_files import ConfigFiles
from .app import App
from .workers.heartbeats import Heartbeats
from .workers.link import WorkerSockets
from .workers.supervisor import END
from .workers.workers import Workers


def run_worker(
    config: KVAtlasConfig, files: ConfigFiles, sockets: WorkerSockets, heartbeats: Heartbeats, worker: int
) -> int:
    """Run the worker of that number until it is signalled to end, and return its exit status. To be called in a process of its own.

    Args:
        config: of all workers.
        files: its source.
        sockets: between the workers.
        heartbeats: of all workers.
        worker: counted from 0.

    Raises:
        KVAtlasError: as of `App`.
    """
    own = worker_config(config, worker)

    async def run() -> int:
        async with sockets.link(worker) as link:
            workers = Workers(link, own, on_beat=partial(heartbeats.beat, worker))
            await workers.meet()
            return await App(own, files, workers=workers).run(ends=(END,))

    return uvloop.run(run())


def worker_config(config: KVAtlasConfig, worker: int) -> KVAtlasConfig:
    """Return the configuration of the worker of that number.

    Ports are higher by the number, port 0 stays; every worker has its own snapshot and traces.
    """
    if not worker:
        return config
    server: ServerConfig = config.server
    snapshot: SnapshotConfig = config.snapshot
    if snapshot.file:
        snapshot = msgspec.structs.replace(snapshot, file=f"{snapshot.file}.{worker}")
    recorder: RecorderConfig = config.recorder
    if recorder.folder:
        recorder = msgspec.structs.replace(recorder, folder=f"{recorder.folder}.{worker}")
    server = msgspec.structs.replace(
        server,
        ext_proc=_moved(server.ext_proc, worker),
        health=_moved(server.health, worker),
        rest=_moved(server.rest, worker),
        metrics=_moved(server.metrics, worker),
    )
    return msgspec.structs.replace(config, server=server, snapshot=snapshot, recorder=recorder)


def _moved(address: str, by: int) -> str:
    if not address:
        return ""
    where = HostPort.parse(address, lowest_port=0)
    return str(HostPort(where.host, where.port + by if where.port else 0))
