"""One of several workers: its configuration, and its run; and what their parent keeps for those that start again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import uvloop

from ..configs.address import HostPort
from ..configs.changes import changes
from ..configs.discovery import with_listed_endpoints
from ..configs.errors import ConfigError
from ..configs.file_watch import FileWatch
from ..configs.listeners import ServerConfig
from ..configs.observers import RecorderConfig
from ..configs.schema import KVAtlasConfig, SnapshotConfig
from ..routing.plan.config_files import ConfigFiles
from .app import App
from .replicas.pod import Place
from .workers.ports import SharedPorts
from .workers.supervisor import END

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Longest time that the parent waits for files; they may be on a network file system that does not respond."""


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
        config: of all workers, as their parent has it.
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
    started = present_config(own_files, worker_config(config, place.worker, ports), on_refusal=_say)

    async def run() -> int:
        return await App(started, own_files, place=place, on_beat=on_beat).run(ends=(END,))

    return uvloop.run(run())


def present_config(
    files: ConfigFiles,
    config: KVAtlasConfig,
    *,
    is_signalled: bool = False,
    on_refusal: Callable[[ConfigError], None],
) -> KVAtlasConfig:
    """Return the configuration of the files as they are now, as far as processes that have `config` take it.

    Args:
        files: the files.
        config: loaded from them before; stays in place of files that cannot be used, or change what needs a restart.
        is_signalled: whether a signal has files loaded again that are not followed.
        on_refusal: called with what is wrong with a file.
    """
    if files.follows or is_signalled:
        try:
            loaded = files.load(config).config
            if all(change.is_live for change in changes(config, loaded)):
                config = loaded
        except ConfigError as error:
            on_refusal(error)
    try:
        return with_listed_endpoints(config)
    except ConfigError as error:
        on_refusal(error)
        return config


class KeptConfig:
    """The last usable configuration of the files, for workers that start again. In their parent.

    Args:
        config: of the start.
        files: its source.
    """

    def __init__(self, config: KVAtlasConfig, files: ConfigFiles) -> None:
        self.config = config
        """The configuration."""
        self._files = files
        self._watch = self._watched()
        self._looking: threading.Thread | None = None
        self._is_signalled = False

    def look(self, *, is_signalled: bool) -> None:
        """Load the files if they have changed, or as a signal says. To be called several times a second.

        It waits for the files for `LOOK_S` at most, and not at all while they keep a thread waiting; a signal is obeyed afterwards. No
        other thread runs when it returns otherwise, so that the process can be forked.
        """
        self._is_signalled = self._is_signalled or is_signalled
        if self._looking is not None and self._looking.is_alive():
            return
        is_signalled, self._is_signalled = self._is_signalled, False
        self._looking = threading.Thread(target=self._look, args=(is_signalled,), daemon=True)
        self._looking.start()
        self._looking.join(LOOK_S)
        if self._looking.is_alive():
            log.warning(
                "the configuration files do not respond; workers that are started again have what was read before"
            )

    def _look(self, is_signalled: bool) -> None:  # noqa: FBT001 - an argument of a thread
        if not self._watch.settled() and not is_signalled:
            return
        before = self.config
        try:
            self.config = present_config(
                self._files, before, is_signalled=is_signalled, on_refusal=_leave_to_workers
            )
        except Exception:  # a fault of ours must not end the parent, and all workers with it
            log.exception("workers that are started again have the configuration of before")
        if self.config.endpoints.file != before.endpoints.file:
            self._watch = self._watched()

    def _watched(self) -> FileWatch:
        paths = self._files.paths if self._files.follows else ()
        listed = self.config.endpoints.file
        return FileWatch(*paths, *((Path(listed),) if listed else ()))


def _leave_to_workers(_: ConfigError) -> None:
    """Do nothing; those that run log it."""


def _say(error: ConfigError) -> None:
    log.warning("this worker starts with the last usable configuration: %s", error)


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
