"""The source of knowledge about each tier of one publisher, and its changes."""

from __future__ import annotations

from dataclasses import dataclass

from .columns import Saved
from .tiers import TierId, TierSource, TierTable

PATIENCE_S = 5.0
"""Time in which an offloading engine must send its first usable event of the tier."""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """A change of one tier's source; `old` is None if there was none."""

    tier: TierId
    old: TierSource | None
    new: TierSource
    why: str


class SavedSources(Saved, frozen=True):
    """Sources found by evidence, and seconds since the engine was first known to offload, None if it is not."""

    found: dict[TierId, TierSource]
    offloading_s: float | None


class Sources:
    """The current source of each tier.

    A configured source stays. Otherwise a tier starts without one and gets it by evidence: `events` from the first
    usable event on, `inferred` if the engine's metrics show offloading and no usable event comes, `routing` for the
    fastest tier of an endpoint without event stream.

    Args:
        tiers: tier table with the configured sources.
    """

    def __init__(self, tiers: TierTable) -> None:
        self.version = 0
        """Changes with every change of a tier's source."""
        self._tiers = tiers
        self._found: dict[TierId, TierSource] = {}
        self._offloading_since: float | None = None

    def of(self, tier: TierId) -> TierSource | None:
        """Return the tier's source, None without evidence."""
        return self._tiers.specs[tier].source or self._found.get(tier)

    def found(self, tier: TierId) -> TierSource | None:
        """Return the tier's source found by evidence, None without evidence or if it is configured."""
        return self._found.get(tier)

    def believes_events(self, tier: TierId) -> bool:
        """Return whether events of the tier are used; another configured source rules them out."""
        return self._tiers.specs[tier].source in (None, TierSource.EVENTS)

    def usable_event(self, tier: TierId) -> SourceChange | None:
        """Record a usable event of the tier."""
        if self._found.get(tier) is TierSource.EVENTS:
            return None
        return self._switch(tier, TierSource.EVENTS, "it sends usable events")

    def no_events(self) -> SourceChange | None:
        """Record that the endpoint has no event stream."""
        return self._switch(TierId(0), TierSource.ROUTING, "the endpoint has no event stream")

    def offloads(self, *, now: float) -> SourceChange | None:
        """Record that the engine's metrics show offloading to the second tier; called repeatedly while they do."""
        tier = TierId(1)
        if len(self._tiers.names) < 2 or self.of(tier) is not None:
            return None
        if self._offloading_since is None:
            self._offloading_since = now
        if now - self._offloading_since < PATIENCE_S:
            return None
        return self._switch(tier, TierSource.INFERRED, "the engine offloads but sends no usable events of it")

    def is_dark(self, tier: TierId) -> bool:
        """Return whether the engine is known to offload to the tier without usable events."""
        return (
            tier == TierId(1)
            and self._offloading_since is not None
            and self.of(tier) is not TierSource.EVENTS
        )

    def dump(self, *, now: float) -> SavedSources:
        """Return the sources found, to be saved; `now` in monotonic seconds."""
        since = self._offloading_since
        return SavedSources(found=self._found.copy(), offloading_s=None if since is None else now - since)

    def load(self, saved: SavedSources, *, now: float) -> list[SourceChange]:
        """Load a dump; return the sources as changes."""
        self._offloading_since = None if saved.offloading_s is None else now - saved.offloading_s
        changes = [
            self._switch(tier, source, "it was in the snapshot") for tier, source in saved.found.items()
        ]
        return [change for change in changes if change is not None]

    def clear(self) -> None:
        """Forget all evidence: the publisher started a new life."""
        self._found.clear()
        self.version += 1
        self._offloading_since = None

    def _switch(self, tier: TierId, new: TierSource, why: str) -> SourceChange | None:
        old = self.of(tier)
        if old is new or self._tiers.specs[tier].source is not None:
            return None
        self._found[tier] = new
        self.version += 1
        return SourceChange(tier, old, new, why)
