"""Where one publisher's knowledge of each tier comes from, and when that changes."""

from __future__ import annotations

from dataclasses import dataclass

from .columns import Saved
from .tiers import TierId, TierSource, TierTable

PATIENCE_S = 5.0
"""Time that an offloading engine gets to send its first usable event of the tier."""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """One tier of one publisher is known from elsewhere than before; None: from nowhere."""

    tier: TierId
    old: TierSource | None
    new: TierSource
    why: str


class SavedSources(Saved, frozen=True):
    """Sources found, by tier, and for how long the engine has been known to offload, None when it is not."""

    found: dict[TierId, TierSource]
    offloading_s: float | None


class Sources:
    """The current source of each tier.

    A configured source stays. Without one a tier starts with none, and finds its source by evidence: `events` from the
    first usable event on, `inferred` when the engine's metrics show offloading and no usable event comes,
    `routing` for the fastest tier of an endpoint without event stream.

    Args:
        tiers: tier table with the configured sources.
    """

    def __init__(self, tiers: TierTable) -> None:
        self.version = 0
        """Changes whenever a tier's source does."""
        self._tiers = tiers
        self._found: dict[TierId, TierSource] = {}
        self._offloading_since: float | None = None

    def of(self, tier: TierId) -> TierSource | None:
        """The tier's source, None while there is no evidence."""
        return self._tiers.specs[tier].source or self._found.get(tier)

    def found(self, tier: TierId) -> TierSource | None:
        """The tier's source as evidence showed it, None without evidence or where it is configured."""
        return self._found.get(tier)

    def believes_events(self, tier: TierId) -> bool:
        """Whether events of the tier are taken; a source configured otherwise forbids them."""
        return self._tiers.specs[tier].source in (None, TierSource.EVENTS)

    def usable_event(self, tier: TierId) -> SourceChange | None:
        """A usable event of the tier came."""
        if self._found.get(tier) is TierSource.EVENTS:
            return None
        return self._switch(tier, TierSource.EVENTS, "its events tell what it holds")

    def no_events(self) -> SourceChange | None:
        """The endpoint has no event stream."""
        return self._switch(TierId(0), TierSource.ROUTING, "the endpoint has no event stream")

    def offloads(self, *, now: float) -> SourceChange | None:
        """The engine's metrics show that it offloads to the second tier; told again and again while they do."""
        tier = TierId(1)
        if len(self._tiers.names) < 2 or self.of(tier) is not None:
            return None
        if self._offloading_since is None:
            self._offloading_since = now
        if now - self._offloading_since < PATIENCE_S:
            return None
        return self._switch(tier, TierSource.INFERRED, "the engine offloads but sends no usable events of it")

    def is_dark(self, tier: TierId) -> bool:
        """Whether the engine is known to offload to the tier without telling what."""
        return (
            tier == TierId(1)
            and self._offloading_since is not None
            and self.of(tier) is not TierSource.EVENTS
        )

    def dump(self, *, now: float) -> SavedSources:
        """What was found, to be saved; `now` in monotonic seconds."""
        since = self._offloading_since
        return SavedSources(found=self._found.copy(), offloading_s=None if since is None else now - since)

    def load(self, saved: SavedSources, *, now: float) -> list[SourceChange]:
        """Take over what `dump` of another gave; returns it as changes from nothing."""
        self._offloading_since = None if saved.offloading_s is None else now - saved.offloading_s
        changes = [self._switch(tier, source, "it was saved so") for tier, source in saved.found.items()]
        return [change for change in changes if change is not None]

    def clear(self) -> None:
        """The publisher began a new life."""
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
