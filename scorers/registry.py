"""Plugin types by name: what a configuration may ask for, and how each is built."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from .base import PickerPlugin, Scorer
from .errors import ParametersError, RegistryError


class PluginParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every plugin's parameters: camelCase keys, unknown keys refused."""


class NoParams(PluginParams, frozen=True):
    """Parameters of a plugin that takes none."""


P = TypeVar("P", bound=PluginParams)
T = TypeVar("T")


class _Plugins(Generic[T]):
    """The plugins of one kind, by type."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._builders: dict[str, Callable[[Mapping[str, object]], T]] = {}

    def add(self, plugin_type: str, params: type[P], build: Callable[[P], T]) -> None:
        if plugin_type in self._builders:
            raise RegistryError(f"{self._kind} {plugin_type!r} is registered twice")

        def build_from(parameters: Mapping[str, object]) -> T:
            try:
                return build(msgspec.convert(parameters, params))
            except msgspec.ValidationError as error:
                raise ParametersError(f"parameters of {plugin_type}: {error}") from error

        self._builders[plugin_type] = build_from

    def build(self, plugin_type: str, parameters: Mapping[str, object]) -> T:
        builder = self._builders.get(plugin_type)
        if builder is None:
            near = difflib.get_close_matches(plugin_type, self._builders, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise RegistryError(
                f"no {self._kind} {plugin_type!r}; {hint}known: {', '.join(sorted(self._builders))}"
            )
        return builder(parameters)

    def types(self) -> tuple[str, ...]:
        return tuple(self._builders)


class Registry:
    """Scorers and pickers by plugin type. Nothing registers itself; whoever builds the process does."""

    def __init__(self) -> None:
        self._scorers: _Plugins[Scorer] = _Plugins("scorer")
        self._pickers: _Plugins[PickerPlugin] = _Plugins("picker")

    @property
    def scorer_types(self) -> tuple[str, ...]:
        """Registered scorer types, in order of registration."""
        return self._scorers.types()

    @property
    def picker_types(self) -> tuple[str, ...]:
        """Registered picker types, in order of registration."""
        return self._pickers.types()

    def add_scorer(self, plugin_type: str, params: type[P], build: Callable[[P], Scorer]) -> None:
        """Registers a scorer type with its parameters.

        Raises:
            RegistryError: the type is registered already.
        """
        self._scorers.add(plugin_type, params, build)

    def add_picker(self, plugin_type: str, params: type[P], build: Callable[[P], PickerPlugin]) -> None:
        """Registers a picker type with its parameters.

        Raises:
            RegistryError: the type is registered already.
        """
        self._pickers.add(plugin_type, params, build)

    def scorer(self, plugin_type: str, parameters: Mapping[str, object]) -> Scorer:
        """A new scorer of that type.

        Raises:
            RegistryError: nobody registered the type.
            ParametersError: the parameters do not fit; names the key and what is allowed.
        """
        return self._scorers.build(plugin_type, parameters)

    def picker(self, plugin_type: str, parameters: Mapping[str, object]) -> PickerPlugin:
        """A new picker of that type.

        Raises:
            RegistryError: nobody registered the type.
            ParametersError: the parameters do not fit; names the key and what is allowed.
        """
        return self._pickers.build(plugin_type, parameters)
