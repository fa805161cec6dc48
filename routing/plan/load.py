"""Configuration files, read and checked together with the plugins that they name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ...configs.errors import Problem
from ...configs.loader import LoadedConfig, load_file
from ...configs.reading import GivenText
from ...configs.schema import KVAtlasConfig
from .known_types import without_unknown_plugins
from .plan import scheduling_problems


def load_scheduled(
    config: Path | None, picker: Path | GivenText | None = None, *, ignore_unknown: bool = False
) -> LoadedConfig:
    """Load the configuration of one file or two: `config` with the plugins and profiles of `picker`.

    Args:
        config: a configuration file of either kind, None to load `picker` alone.
        picker: beside `config` an `EndpointPickerConfig`, alone a configuration file of either kind.
        ignore_unknown: leave out plugins of unknown types.

    Raises:
        ConfigError: a file cannot be used; names every problem.
    """

    def check(loaded: KVAtlasConfig) -> Iterable[Problem]:
        return scheduling_problems(without_unknown_plugins(loaded)[0] if ignore_unknown else loaded)

    loaded = load_file(config, check=check) if config is not None else None
    if picker is not None:
        loaded = load_file(picker, check=check, base=loaded.config if loaded is not None else None)
    if loaded is None:
        raise ValueError("one file at least")
    if not ignore_unknown:
        return loaded
    kept, left_out = without_unknown_plugins(loaded.config)
    notes = tuple(f"plugin {name} is left out: kvatlas does not have its type" for name in left_out)
    return replace(loaded, config=kept, notes=loaded.notes + notes)
