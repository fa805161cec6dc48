"""The configuration files of a process: what they say with the command line's flags, and when they say something else."""

from __future__ import annotations

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
    """One configuration file or two, and flags of the command line that override them.

    Attributes:
        config: see `load_scheduled`; without any file everything has its default.
        picker: see `load_scheduled`.
        ignore_unknown: see `load_scheduled`.
        with_flags: applies the flags of the command line.
    """

    config: Path | None
    picker: Path | None = None
    ignore_unknown: bool = False
    with_flags: Callable[[KVAtlasConfig], KVAtlasConfig] = _as_it_is

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the files."""
        return tuple(path for path in (self.config, self.picker) if path is not None)

    def load(self, in_force: KVAtlasConfig | None = None) -> LoadedConfig:
        """Load the files, with the endpoints of the `endpoints.file` that they name.

        Args:
            in_force: a configuration loaded before. If it names the same `endpoints.file`, its endpoints are kept: a
                change of that file is a reload of its own.

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
