"""Plugins as they were built, to be kept over a change of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from ...scorers.core.params import BuildContext, PluginParams


@dataclass(frozen=True, slots=True)
class BuiltPlugin:
    """One plugin of a plan.

    Attributes:
        plugin: the plugin itself.
        origin: type, parameters and the configuration around it, from which it was built.
    """

    plugin: object
    origin: tuple[str, PluginParams, BuildContext]
