"""Plugins of other packages, through Python entry points.

An entry point of the groups below has the plugin type as its name and a class as its object. The class is called with
its parameters if it has a `Params`, otherwise without arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import TypeVar, cast

from ...scorers.core.params import BuildContext, NoParams, PluginParams
from ...scorers.core.registry import Plugins, Registry
from ..errors import PluginLoadError

T = TypeVar("T")

GROUPS = {"kvatlas.filters": "judge", "kvatlas.scorers": "rate", "kvatlas.pickers": "pick"}
"""Entry-point group -> the method of plugins of its kind."""


def offered_plugins() -> EntryPoints:
    """Return what installed packages offer, without importing it. Cost: some milliseconds, for it reads a file of each package."""
    return EntryPoints(entry for group in GROUPS for entry in entry_points(group=group))


def add_offered(registry: Registry, plugin_type: str, offered: EntryPoints) -> None:
    """Register a type that an installed package offers; without such a package nothing happens.

    Raises:
        PluginLoadError: it cannot be imported, or another package or kvatlas itself has a plugin of that type.
    """
    _add(registry.filters, "kvatlas.filters", plugin_type, offered)
    _add(registry.scorers, "kvatlas.scorers", plugin_type, offered)
    _add(registry.pickers, "kvatlas.pickers", plugin_type, offered)


def _add(plugins: Plugins[T], group: str, plugin_type: str, offered: EntryPoints) -> None:
    found = list(offered.select(group=group, name=plugin_type))
    if not found:
        return
    owners = {_owner(entry) for entry in found}
    if plugins.get(plugin_type) is not None:
        owners.add("kvatlas")
    if len(owners) > 1:
        raise PluginLoadError(
            f"comes from more than one package: {', '.join(sorted(owners))}; remove all but one"
        )
    factory, params = _loaded(found[0])

    def make(given: PluginParams, _: BuildContext) -> T:
        plugin = factory() if params is NoParams else factory(given)
        if not callable(getattr(plugin, GROUPS[group], None)) or getattr(plugin, "type", None) != plugin_type:
            raise PluginLoadError(
                f"{found[0].value} makes no {plugins.kind}: it must have {GROUPS[group]}() and the type {plugin_type!r}"
            )
        return cast("T", plugin)

    plugins.add(plugin_type, params, make)


def _loaded(entry: EntryPoint) -> tuple[Callable[..., object], type[PluginParams]]:
    try:
        factory = cast("object", entry.load())
    except Exception as error:  # another package's code runs at its import
        raise PluginLoadError(
            f"cannot be imported from {entry.value} ({_owner(entry)}): {type(error).__name__}: {error}"
        ) from error
    params = cast("object", getattr(factory, "Params", NoParams))
    if not callable(factory) or not isinstance(params, type) or not issubclass(params, PluginParams):
        raise PluginLoadError(
            f"is {entry.value} ({_owner(entry)}), which is no class, or whose Params are no kvatlas PluginParams"
        )
    return factory, params


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
