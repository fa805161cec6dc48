"""The configuration files of a process: what they say with the command line's flags, and when they say something else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ...configs.discovery import with_listed_endpoints
from ...configs.loader import LoadedConfig
from ...configs.schema import KVAtlasConfig
from .load import load_scheduled


def _as_it_is(config: KVAtlasConfig) -> KVAtlasConfig:
    return config


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """One configuration file or two, and what the command line says instead of them.

    Attributes:
        config: a file, see `load_scheduled`; without any file everything has its default.
        picker: the same.
        ignore_unknown: the same.
        with_flags: makes of what the files say what the command line wants.
    """

    config: Path | None
    picker: Path | None = None
    ignore_unknown: bool = False
    with_flags: Callable[[KVAtlasConfig], KVAtlasConfig] = _as_it_is

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(path for path in (self.config, self.picker) if path is not None)

    def load(self, in_force: KVAtlasConfig | None = None) -> LoadedConfig:
        """What the files say, with the endpoints of the `endpoints.file` that they name.

        Args:
            in_force: a configuration loaded before, whose endpoints count where it names the same file: what that file
                says by now is for a reload of its own.

        Raises:
            ConfigError: one of the files cannot be used.
        """
        loaded = LoadedConfig(KVAtlasConfig(api_version="kvatlas/v1"))
        if self.paths:
            loaded = load_scheduled(self.config, self.picker, ignore_unknown=self.ignore_unknown)
        config = self.with_flags(loaded.config)
        named = config.endpoints.file
        if named and in_force and (in_force.endpoints.file, in_force.events) == (named, config.events):
            config = msgspec.structs.replace(config, endpoints=in_force.endpoints)
        else:
            config = with_listed_endpoints(config)
        return replace(loaded, config=config)


FileState = tuple[int, ...]
"""What changes whenever a file does; empty without a file."""


class FileWatch:
    """Tells when a file has changed: its content, or the links by which its path leads to it.

    A look is one `stat`, and sees what no notification tells: files on network file systems, and folders on the way to
    the file that are swapped.

    Args:
        path: the file; it may be missing.
        told: how it was when somebody else last told of it, who is not to be told the same again.
    """

    def __init__(self, path: Path, *, told: FileState | None = None) -> None:
        self._path = path
        self._seen: FileState | None = None
        self.told = told
        """How it was when a change was last told; None before the first."""

    def look(self) -> bool:
        """Whether the file differs from when this was last true, or was never looked at, and is as it was a look ago.

        A file that is being written differs from one look to the next; it is told of when it does not any more.
        """
        before, self._seen = self._seen, self._state()
        if self._seen != before or self._seen == self.told:
            return False
        self.told = self._seen
        return True

    def _state(self) -> FileState:
        try:
            found = os.stat(self._path)  # noqa: PTH116 - follows links, and says all in one call
        except OSError:
            return ()
        return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
