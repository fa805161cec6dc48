"""Storage tiers: what they are called, and which of the engines' words mean them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NewType

from ..events.model import MediumName

TierId = NewType("TierId", int)
"""Position in the order of speed, 0 the fastest (GPU memory)."""

MAX_UNKNOWN_TIERS = 8
"""Media nobody configured that get a tier of their own; further ones share the last."""


class TierSource(Enum):
    """Where the knowledge of one tier of one endpoint comes from."""

    EVENTS = "events"
    """The engine's events are believed."""
    INFERRED = "inferred"
    """The engine offloads but does not tell: every block stored in the fastest tier is taken as copied there."""
    ROUTING = "routing"
    """No events at all: what kvatlas sent there is taken as cached."""


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One tier.

    Attributes:
        name: as configured; for an unknown medium its word in lower case.
        media: the engines' words for it.
        capacity: blocks a server holds there at most, None for no bound.
        chunk_blocks: blocks an engine moves together, None to learn it from events.
        source: where knowledge of it comes from, None to find out for each endpoint.
        shared: it belongs to no server: what one stored there every endpoint can load.
        cleared_on_reset: whether an engine that resets its prefix cache empties this tier too.
        configured: False for a tier that only an unknown medium brought up; it earns no credit.
    """

    name: str
    media: tuple[str, ...] = ()
    capacity: int | None = None
    chunk_blocks: int | None = None
    source: TierSource | None = None
    shared: bool = False
    cleared_on_reset: bool = False
    configured: bool = True


class TierTable:
    """The tiers in order of speed; unknown media are appended as they appear."""

    def __init__(self, specs: Sequence[TierSpec]) -> None:
        self.specs = list(specs)
        self._n_configured = len(self.specs)
        self._by_medium = {
            MediumName(medium.upper()): TierId(tier)
            for tier, spec in enumerate(specs)
            for medium in spec.media
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the configured tiers, fastest first."""
        return tuple(spec.name for spec in self.specs[: self._n_configured])

    def bound(self, tier: TierId, n_blocks: int | None) -> None:
        """Another capacity for servers that come from now on."""
        self.specs[tier] = replace(self.specs[tier], capacity=n_blocks)

    @property
    def unknown_media(self) -> tuple[MediumName, ...]:
        """Media that nobody configured and that have tiers, in the order of these."""
        return tuple(MediumName(spec.media[0]) for spec in self.specs[self._n_configured :])

    def of(self, medium: MediumName) -> TierId:
        """The tier that `medium` means. Cost: O(1)."""
        tier = self._by_medium.get(medium)
        if tier is None:
            if len(self.specs) < self._n_configured + MAX_UNKNOWN_TIERS:
                self.specs.append(
                    TierSpec(name=self._unused_name(medium.lower()), media=(medium,), configured=False)
                )
                tier = self._by_medium[medium] = TierId(len(self.specs) - 1)
            else:
                tier = TierId(len(self.specs) - 1)
        return tier

    def _unused_name(self, name: str) -> str:
        """`name`, or where a tier is called that already, what tells them apart."""
        names = {spec.name for spec in self.specs}
        return next(text for text in (name, f"unknown-{name}", f"unknown-{len(names)}") if text not in names)
