"""What a plugin is built from: its parameters, and the rest of the configuration as far as it may know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ..errors import ParametersError, UnknownName
from .prefix_source import OneTier, PrefixSource


class PluginParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of every plugin's parameters: camelCase keys, unknown keys refused."""


class NoParams(PluginParams, frozen=True):
    """Parameters of a plugin that takes none."""


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The configuration around a plugin.

    Attributes:
        tiers: names of the configured tiers, fastest first.
        sources: name of a prefix producer -> what its matches are read from.
        own: what is read where the plugin's own parameters describe an index, None where they do not.
    """

    tiers: tuple[str, ...] = ()
    sources: Mapping[str, PrefixSource] = field(default_factory=dict[str, PrefixSource])
    own: PrefixSource | None = None

    def known_tier(self, tier: str, key: str = "tier") -> str:
        """`tier`, which the parameter `key` names.

        Raises:
            ParametersError: no such tier is configured.
        """
        if tier not in self.tiers:
            unknown = UnknownName(tier, self.tiers)
            raise ParametersError(f"found {tier!r}, expected a configured tier", key, unknown=unknown)
        return tier

    def prefix_source(self, *, tier: str | None, producer: str) -> PrefixSource:
        """What a plugin reads: the tier it names, its own index, the producer it names, or the fastest tier.

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
