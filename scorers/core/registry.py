"""Registry of plugin types, by the name that configurations use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast

from ..errors import RegistryError
from .around import AttributeReporter, IdentityReader, ModelsResponder
from .base import Admitter, Decider, Filter, Handler, LoadEstimate, Picker, Predictor, Scorer
from .headers import StageHeaders
from .kv_source import KvSource
from .params import BuildContext, PluginParams, RequestAttribute
from .prefix_source import PrefixProducer
from .topology import Topology

P = TypeVar("P", bound=PluginParams)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Blueprint(Generic[T]):
    """Factory of plugins of one type.

    Attributes:
        plugin_type: its name in the configuration.
        params: type of its parameters.
        make: builds a plugin; raises ParametersError if parameters contradict each other or the rest of the configuration.
    """

    plugin_type: str
    params: type[PluginParams]
    make: Callable[[PluginParams, BuildContext], T]


class Plugins(Generic[T]):
    """The plugins of one kind, by type.

    Args:
        kind: `scorer`, `filter`, `picker`, `producer` or another one of `Registry`, for messages.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._blueprints: dict[str, Blueprint[T]] = {}

    def __iter__(self) -> Iterator[str]:
        """Iterate over the registered types, in order of registration."""
        return iter(self._blueprints)

    def get(self, plugin_type: str) -> Blueprint[T] | None:
        """Return the factory of that type, None if it is not registered."""
        return self._blueprints.get(plugin_type)

    def add(self, plugin_type: str, params: type[P], make: Callable[[P, BuildContext], T]) -> None:
        """Register a type.

        Raises:
            RegistryError: the type is already registered.
        """
        if plugin_type in self._blueprints:
            raise RegistryError(f"{self.kind} {plugin_type!r} is registered twice")
        general = cast("Callable[[PluginParams, BuildContext], T]", make)  # called with `params` only
        self._blueprints[plugin_type] = Blueprint(plugin_type, params, general)


AnyPlugins: TypeAlias = (
    Plugins[Filter]
    | Plugins[Scorer]
    | Plugins[Picker]
    | Plugins[PrefixProducer]
    | Plugins[Admitter]
    | Plugins[Predictor]
    | Plugins[IdentityReader]
    | Plugins[Topology]
    | Plugins[RequestAttribute]
    | Plugins[AttributeReporter]
    | Plugins[ModelsResponder]
    | Plugins[LoadEstimate]
    | Plugins[Decider]
    | Plugins[Handler]
    | Plugins[StageHeaders]
    | Plugins[KvSource]
)
"""The plugins of one kind, whichever it is."""


class Registry:
    """Plugins of every kind. Registration is explicit, in one place. A type may have several kinds."""

    def __init__(self) -> None:
        self.filters: Plugins[Filter] = Plugins("filter")
        self.screeners: Plugins[Filter] = Plugins("screener")
        self.scorers: Plugins[Scorer] = Plugins("scorer")
        self.pickers: Plugins[Picker] = Plugins("picker")
        self.producers: Plugins[PrefixProducer] = Plugins("producer")
        self.admitters: Plugins[Admitter] = Plugins("admitter")
        self.predictors: Plugins[Predictor] = Plugins("predictor")
        self.extractors: Plugins[Topology] = Plugins("extractor")
        self.attributes: Plugins[RequestAttribute] = Plugins("attribute")
        self.identities: Plugins[IdentityReader] = Plugins("identity")
        self.reporters: Plugins[AttributeReporter] = Plugins("reporter")
        self.responders: Plugins[ModelsResponder] = Plugins("responder")
        self.loads: Plugins[LoadEstimate] = Plugins("load producer")
        self.deciders: Plugins[Decider] = Plugins("decider")
        self.handlers: Plugins[Handler] = Plugins("handler")
        self.stage_headers: Plugins[StageHeaders] = Plugins("header handler")
        self.kv_sources: Plugins[KvSource] = Plugins("pull source")

    @property
    def kinds(self) -> tuple[AnyPlugins, ...]:
        """Return the plugins of all kinds."""
        return (
            self.filters,
            self.screeners,
            self.scorers,
            self.pickers,
            self.producers,
            self.admitters,
            self.predictors,
            self.extractors,
            self.attributes,
            self.identities,
            self.reporters,
            self.responders,
            self.loads,
            self.deciders,
            self.handlers,
            self.stage_headers,
            self.kv_sources,
        )
