"""The server as `kvatlas serve` runs it: in this process, or in several workers."""

from __future__ import annotations

import logging
import os
import tempfile
from functools import partial
from pathlib import Path

import uvloop
from prometheus_client import disable_created_metrics

from ...api.descriptors import raise_limit
from ...configs.errors import ConfigError, Problem
from ...configs.reading import GivenText
from ...configs.schema import KVAtlasConfig
from ...events.errors import KVAtlasError
from ...routing.plan.config_files import ConfigFiles
from ..app import App
from ..replicas.pod import Place
from ..worker import KeptConfig, run_worker
from ..workers.heartbeats import Heartbeats
from ..workers.ports import SharedPorts
from ..workers.supervisor import Supervisor
from .exit_status import WRONG_USE, fail, load_or_fail, say_on_stderr
from .log import LogOptions
from .overrides import Overrides

log = logging.getLogger(__name__)

MOST_PATH_BYTES = 100
"""Longest path of a folder with Unix sockets, whose own paths have at most 107 bytes."""


def run_server(
    config: Path | None,
    picker: Path | GivenText | None,
    overrides: Overrides,
    log_options: LogOptions,
    *,
    ignore_unknown: bool,
    follows: bool,
) -> int:
    """Serve until a signal ends the process, and return the exit status.

    Args:
        config: configuration file, None without one.
        picker: EndpointPickerConfig, None without one.
        overrides: flags of the command line.
        log_options: level and form of the log.
        ignore_unknown: whether to leave out unknown plugins.
        follows: whether changed files are loaded.
    """
    log_options.start()
    for note in overrides.reference.notes():
        log.info("%s", note)

    def with_flags(loaded: KVAtlasConfig) -> KVAtlasConfig:
        try:
            return overrides.apply(loaded)
        except ValueError as error:
            # The flags may have fitted the file before: then its change is refused, as any other.
            raise ConfigError("command line", [Problem(str(error))]) from error

    # A time stamp beside each counter would double the series and tell nothing.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    files = ConfigFiles(config, picker, ignore_unknown, with_flags, follows)
    raise_limit()  # workers inherit it
    loaded = load_or_fail(files.load)
    for note in loaded.notes:
        log.info("%s", note)
    if loaded.config.server.workers > 1:
        return _run_workers(loaded.config, files, log_options)
    try:
        return uvloop.run(App(loaded.config, files).run())
    except KVAtlasError as error:
        fail(str(error))


def _run_workers(config: KVAtlasConfig, files: ConfigFiles, log_options: LogOptions) -> int:
    """Serve in several workers, and return the exit status."""
    n_workers, kept = config.server.workers, KeptConfig(config, files)
    with _folder_of_sockets() as folder:
        heartbeats = Heartbeats(n_workers)
        try:
            ports = SharedPorts(config.server)
        except KVAtlasError as error:
            fail(str(error))

        def run(worker: int) -> int:
            log_options.start(worker=worker)
            place = Place(worker, n_workers, Path(folder))
            try:
                return run_worker(kept.config, files, place, ports, on_beat=partial(heartbeats.beat, worker))
            except KVAtlasError as error:
                say_on_stderr(str(error))
                return WRONG_USE

        return Supervisor(
            n_workers,
            run,
            gives_up=WRONG_USE,
            heartbeats=heartbeats,
            timeout_s=config.server.worker_timeout,
            on_look=kept.look,
        ).serve()


def _folder_of_sockets() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder that only this user may enter; end the command if none can be made."""
    problem = "server.workers: no folder for the sockets between workers can be made"
    remedy = "mount a folder to write to at /tmp, or set TMPDIR to one; or set server.workers to 1"
    try:
        folder = tempfile.TemporaryDirectory(prefix="kvatlas-")
    except OSError as error:
        fail(f"{problem}: {error}; {remedy}")
    if len(os.fsencode(folder.name)) > MOST_PATH_BYTES:
        folder.cleanup()
        fail(f"{problem}: the path {folder.name} is longer than {MOST_PATH_BYTES} bytes; {remedy}")
    return folder
