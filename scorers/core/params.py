"""Parameters of a plugin, and the part of the configuration that it may read when it is built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, runtime_checkable

import msgspec

from ..errors import ParametersError, UnknownName
from .base import Decider
from .headers import StageHeaders
from .prefix_source import OneTier, PrefixSource
from .topology import TOPOLOGY_EXTRACTOR, Topology

HeaderReader: TypeAlias = Callable[[Mapping[str, str]], str]
"""Reads a text from request headers, lower-case name -> value; empty if it is missing."""


class PluginParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the parameters of every plugin: camelCase keys, unknown keys are errors."""


@runtime_checkable
class RequestAttribute(Protocol):
    """Parameters of a plugin that makes an attribute of requests from their headers, such as the id of a session."""

    def attribute(self, headers: Mapping[str, str]) -> str:
        """Return the attribute, empty if the request has none; `headers` is lower-case name -> value."""
        ...


@runtime_checkable
class Remarks(Protocol):
    """Parameters that may have no effect in a configuration."""

    def remarks(self, context: BuildContext) -> Iterable[str]:
        """Yield what has no effect, and why, one line each for the log."""
        ...


class NoParams(PluginParams, frozen=True):
    """Parameters of a plugin without parameters."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The configuration that a plugin may read.

    Attributes:
        tiers: names of the configured tiers, fastest first.
        sources: name of a prefix producer -> source of its matches.
        own: source that the plugin's own parameters describe, None if they describe none.
        namespace: Kubernetes namespace of endpoints whose name has none.
        request_attributes: name of a plugin -> the attribute of requests that it makes.
        topologies: name of a topology extractor -> its labels.
        attributes: attributes of endpoints that are scraped.
        predictor: name of the predictor, None if there is none.
        media: name of an `mm-embeddings-cache-producer` -> media items per server.
        profiles: names of the scheduling profiles; for handlers alone.
        deciders: name of a decider -> the decider; for handlers alone.
        stage_headers: headers that a header handler has the sidecar get, None if there is none; for handlers alone.
        kv_bytes_per_token: size of the KV state of a token, None if it is not known; for handlers alone.
    """

    tiers: tuple[str, ...] = ()
    sources: Mapping[str, PrefixSource] = field(default_factory=dict[str, PrefixSource])
    own: PrefixSource | None = None
    namespace: str = "default"
    request_attributes: Mapping[str, RequestAttribute] = field(default_factory=dict[str, RequestAttribute])
    topologies: Mapping[str, Topology] = field(default_factory=dict[str, Topology])
    attributes: tuple[str, ...] = ()
    predictor: str | None = None
    media: Mapping[str, int] = field(default_factory=dict[str, int])
    profiles: tuple[str, ...] = ()
    deciders: Mapping[str, Decider] = field(default_factory=dict[str, Decider])
    stage_headers: StageHeaders | None = None
    kv_bytes_per_token: float | None = None

    def known_predictor(self, name: str) -> None:
        """Check that there is a predictor of that name; an empty name is that of any.

        Raises:
            ParametersError: there is none, or it has another name.
        """
        key = "latencyPredictionInfoProducerName"
        if self.predictor is None:
            raise ParametersError("needs predictions; add a predicted-latency-producer to plugins", key)
        if name not in ("", self.predictor):
            unknown = UnknownName(name, (self.predictor,))
            raise ParametersError(
                f"found {name!r}, expected the name of a predicted-latency-producer", key, unknown=unknown
            )

    def known_tier(self, tier: str, key: str = "tier") -> str:
        """Return `tier`, which the parameter `key` names, if it is configured.

        Raises:
            ParametersError: no such tier is configured.
        """
        if tier not in self.tiers:
            unknown = UnknownName(tier, self.tiers)
            raise ParametersError(f"found {tier!r}, expected a configured tier", key, unknown=unknown)
        return tier

    def prefix_source(self, *, tier: str | None, producer: str) -> PrefixSource:
        """Return the source for a plugin: the named tier, its own index, the named producer, or the fastest tier.

        Raises:
            ParametersError: the tier is not configured, or no plugin has the producer's name.
        """
        if tier is not None:
            return OneTier(self.known_tier(tier))
        if self.own is not None:
            return self.own
        if not producer:
            return OneTier(self.tiers[0] if self.tiers else None)
        if producer not in self.sources:
            raise ParametersError(
                f"found {producer!r}, expected the name of a prefix cache producer",
                "prefixMatchInfoProducerName",
                unknown=UnknownName(producer, tuple(self.sources)),
            )
        return self.sources[producer]

    def known_profile(self, name: str, key: str) -> str:
        """Return `name`, which the parameter `key` has, if there is a profile of that name.

        Raises:
            ParametersError: there is none.
        """
        if name not in self.profiles:
            unknown = UnknownName(name, self.profiles)
            raise ParametersError(
                f"found {name!r}, expected a profile of schedulingProfiles", key, unknown=unknown
            )
        return name

    def decider(self, name: str, key: str) -> Decider:
        """Return the decider that the parameter `key` names.

        Raises:
            ParametersError: no decider has that name.
        """
        if name not in self.deciders:
            unknown = UnknownName(name, tuple(self.deciders))
            raise ParametersError(f"found {name!r}, expected the name of a decider", key, unknown=unknown)
        return self.deciders[name]

    def topology(self, producer: str) -> Topology:
        """Return the labels of that extractor, or the usual labels if the name is empty or unknown."""
        return self.topologies.get(producer or TOPOLOGY_EXTRACTOR, Topology())
