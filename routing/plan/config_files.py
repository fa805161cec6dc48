"""The configuration files of a process: loaded with the command line's flags, and followed as they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ...configs.discovery import with_listed_endpoints
from ...configs.file_watch import FileWatch
from ...configs.loader import LoadedConfig
from ...configs.reading import GivenText
from ...configs.reference_defaults import with_reference_defaults
from ...configs.schema import KVAtlasConfig
from .live import LiveConfig
from .load import load_scheduled

POLL_S = 0.25
"""Time between two checks of the files."""


def _as_it_is(config: KVAtlasConfig) -> KVAtlasConfig:
    return config


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """One configuration file or two, and flags of the command line that override them.

    Attributes:
        config: see `load_scheduled`; None if the process was started by the reference's flags and file alone, which gives
            its listeners the reference's defaults.
        picker: see `load_scheduled`.
        ignore_unknown: see `load_scheduled`.
        with_flags: applies the flags of the command line.
        follows: whether the files are loaded again when they change; a signal has them loaded always.
    """

    config: Path | None
    picker: Path | GivenText | None = None
    ignore_unknown: bool = False
    with_flags: Callable[[KVAtlasConfig], KVAtlasConfig] = _as_it_is
    follows: bool = True

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the files."""
        return tuple(path for path in (self.config, self.picker) if isinstance(path, Path))

    def load(self, in_force: KVAtlasConfig | None = None) -> LoadedConfig:
        """Load the files, with the endpoints of the `endpoints.file` that they name.

        Args:
            in_force: a configuration loaded before. If it names the same `endpoints.file`, read with the same ports and
                pages, its endpoints are kept: a change of that file is a reload of its own.

        Raises:
            ConfigError: one of the files cannot be used.
        """
        loaded = LoadedConfig(KVAtlasConfig(api_version="kvatlas/v1"), is_reference=True)
        if self.config is not None or self.picker is not None:
            loaded = load_scheduled(self.config, self.picker, ignore_unknown=self.ignore_unknown)
        config = loaded.config
        if self.config is None and loaded.is_reference:
            config = with_reference_defaults(config)
        config = self.with_flags(config)
        if config.endpoints.file and in_force and _basis(in_force) == _basis(config):
            config = msgspec.structs.replace(config, endpoints=in_force.endpoints)
        else:
            config = with_listed_endpoints(config)
        return replace(loaded, config=config)


def _basis(config: KVAtlasConfig) -> tuple[object, ...]:
    """Return all that decides what an `endpoints.file` stands for, beside its content."""
    return config.endpoints.file, config.events, config.metrics_scrape.place


class ConfigFollower:
    """Loads the files of a process into its configuration when they change.

    Args:
        files: the files; None follows only the `endpoints.file` of the configuration.
        live: the configuration in force.
    """

    def __init__(self, files: ConfigFiles | None, live: LiveConfig) -> None:
        self._files, self._live = files, live
        self._watches: dict[Path, FileWatch] = {}

    async def watch(self, reload: asyncio.Event) -> None:
        """Load the files when they change and when `reload` is set, until cancelled."""
        while True:
            await self.look()
            try:
                # not `wait_for`, which before Python 3.12 may lose a cancellation: the process would never stop
                async with asyncio.timeout(POLL_S):
                    await reload.wait()
            except TimeoutError:
                continue
            reload.clear()
            await self.reload()

    async def look(self) -> None:
        """Check the files and load those that changed; the first check loads all of them."""
        paths = self._files.paths if self._files is not None and self._files.follows else ()
        if any([await self._has_changed(path) for path in paths]):
            await self._load_config("file")
        named = self._live.loaded.endpoints.file
        listed = Path(named) if named else None
        if listed is not None and await self._has_changed(listed):
            await self._load_endpoints("file")
        # Files of another `endpoints.file` are followed no more.
        for path in self._watches.keys() - {*paths, listed}:
            del self._watches[path]
            self._live.refusals.pop(str(path), None)

    async def reload(self) -> None:
        """Load the files as they are, changed or not."""
        await self._load_config("signal")
        await self._load_endpoints("signal")

    async def _has_changed(self, path: Path) -> bool:
        watch = self._watches.setdefault(path, FileWatch(path))
        return await asyncio.to_thread(watch.settled)  # a network file system may be slow

    async def _load_config(self, why: str) -> None:
        files, live = self._files, self._live
        if files is not None:
            name = " and ".join(map(str, files.paths)) or "command line"
            await live.load(name, why, lambda: files.load(live.loaded))

    async def _load_endpoints(self, why: str) -> None:
        live = self._live
        if live.loaded.endpoints.file:
            await live.load(
                live.loaded.endpoints.file,
                why,
                lambda: LoadedConfig(with_listed_endpoints(live.loaded)),
                is_list=True,
            )
