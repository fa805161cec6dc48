"""Storage tiers: their names, and the media by which engines refer to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NewType

from ..events.model import MediumName, broader_media, is_remote

TierId = NewType("TierId", int)
"""Position in the order of speed, 0 the fastest (GPU memory)."""

MAX_UNKNOWN_TIERS = 8
"""Unconfigured media that get their own tier; further ones share the last."""


class TierSource(Enum):
    """The source of knowledge about one tier of one endpoint."""

    EVENTS = "events"
    """The engine's events."""
    INFERRED = "inferred"
    """No events although the engine offloads: every block stored in the fastest tier counts as copied there."""
    ROUTING = "routing"
    """No events at all: prompts that kvatlas sent there count as cached."""


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One tier.

    Attributes:
        name: as configured; for an unknown medium its name in lower case.
        media: the engines' names for it.
        capacity: bound in blocks per server, None for no bound.
        chunk_blocks: blocks that an engine moves together, None to learn it from events.
        source: source of knowledge about it, None to find it per endpoint.
        shared: whether it belongs to no server, so that every endpoint can load any block stored there.
        is_shared_by_events: whether `shared` is what engines told, not what is configured.
        cleared_on_reset: whether an engine that resets its prefix cache empties this tier too.
        configured: False for a tier that was added for an unknown medium; it earns no credit.
    """

    name: str
    media: tuple[str, ...] = ()
    capacity: int | None = None
    chunk_blocks: int | None = None
    source: TierSource | None = None
    shared: bool = False
    is_shared_by_events: bool = False
    cleared_on_reset: bool = False
    configured: bool = True


class TierTable:
    """Tiers in order of speed; unknown media are appended as they appear."""

    def __init__(self, specs: Sequence[TierSpec]) -> None:
        self.specs = list(specs)
        self._n_configured = len(self.specs)
        self.on_remote: Callable[[TierId], None] = lambda _: None
        """Called when an event says that blocks of a tier are no server's own, and the tier is not known to be shared."""
        self.configured = tuple(map(TierId, range(len(self.specs))))
        """The configured tiers, fastest first."""
        self._by_medium = {
            MediumName(medium.upper()): TierId(tier)
            for tier, spec in enumerate(specs)
            for medium in spec.media
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the configured tiers, fastest first."""
        return tuple(spec.name for spec in self.specs[: self._n_configured])

    def note(self, medium: MediumName, tier: TierId) -> None:
        """Look at the medium of an event whose tier is `tier`."""
        if not self.specs[tier].shared and is_remote(medium):
            self.told_shared(tier)

    def told_shared(self, tier: TierId) -> None:
        """Take the word of an engine, or of a snapshot, that a tier is shared; the fastest one never is."""
        spec = self.specs[tier]
        if tier and spec.configured and not spec.shared:
            self.on_remote(tier)

    def share(self, tier: TierId) -> None:
        """Make a tier belong to no server, as engines tell."""
        self.specs[tier] = replace(self.specs[tier], shared=True, is_shared_by_events=True)

    def bound(self, tier: TierId, n_blocks: int | None) -> None:
        """Set the capacity for servers that are added later."""
        self.specs[tier] = replace(self.specs[tier], capacity=n_blocks)

    @property
    def unknown_media(self) -> tuple[MediumName, ...]:
        """Unconfigured media that have tiers, in the order of the tiers."""
        return tuple(MediumName(spec.media[0]) for spec in self.specs[self._n_configured :])

    def of(self, medium: MediumName) -> TierId:
        """Return the tier of `medium`, adding one for an unknown medium. Cost: O(1).

        A qualified medium that is in no tier belongs to the tier of the broader one.
        """
        tier = self._by_medium.get(medium)
        if tier is not None:
            return tier
        if broader := broader_media(medium):
            known = next((each for each in broader if each in self._by_medium), broader[-1])
            return self.of(known)
        if len(self.specs) == self._n_configured + MAX_UNKNOWN_TIERS:
            return TierId(len(self.specs) - 1)
        self.specs.append(TierSpec(name=self._unused_name(medium.lower()), media=(medium,), configured=False))
        tier = self._by_medium[medium] = TierId(len(self.specs) - 1)
        return tier

    def _unused_name(self, name: str) -> str:
        """Return `name`, with an addition if another tier already has that name."""
        names = {spec.name for spec in self.specs}
        return next(text for text in (name, f"unknown-{name}", f"unknown-{len(names)}") if text not in names)
