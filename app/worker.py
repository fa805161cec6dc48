"""One of several workers: its configuration, and its run."""

from __future__ import annotations

import msgspec
import uvloop

from ..configs.address import HostPort
from ..configs.listeners import ServerConfig
from ..configs.observers import RecorderConfig
from ..configs.schema import KVAtlasConfig, SnapshotConfig
from ..routing.plan.config_files import ConfigFiles
from .app import App
from .workers.crew import Crew
from .workers.link import Mailboxes
from .workers.supervisor import END


def run_worker(config: KVAtlasConfig, files: ConfigFiles, mailboxes: Mailboxes, worker: int) -> None:
    """Be the worker of that number until it is told to end. To be called in a process of its own.

    Args:
        config: of all workers.
        files: where it came from.
        mailboxes: of all workers.
        worker: counted from 0.

    Raises:
        KVAtlasError: as of `App`.
    """
    own = worker_config(config, worker)

    async def run() -> None:
        async with mailboxes.link(worker) as link:
            crew = Crew(link, own)
            await crew.meet()
            await App(own, files, crew=crew).run(ends=(END,))

    uvloop.run(run())


def worker_config(config: KVAtlasConfig, worker: int) -> KVAtlasConfig:
    """The configuration as the worker of that number has it.

    Every port is as much higher as the number, port 0 stays; and every worker keeps a snapshot and traces of its
    own.
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
