"""Parameters of a plugin, and the part of the configuration that it may read when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ..errors import ParametersError, UnknownName
from .prefix_source import OneTier, PrefixSource


class PluginParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the parameters of every plugin: camelCase keys, unknown keys are errors."""


class NoParams(PluginParams, frozen=True):
    """Parameters of a plugin without parameters."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The configuration that a plugin may read.

    Attributes:
        tiers: names of the configured tiers, fastest first.
        sources: name of a prefix producer -> source of its matches.
        own: source that the plugin's own parameters describe, None if they describe none.
        predictor: name of the predictor, None if there is none.
        media: name of an `mm-embeddings-cache-producer` -> media items per server.
    """

    tiers: tuple[str, ...] = ()
    sources: Mapping[str, PrefixSource] = field(default_factory=dict[str, PrefixSource])
    own: PrefixSource | None = None
    predictor: str | None = None
    media: Mapping[str, int] = field(default_factory=dict[str, int])

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
