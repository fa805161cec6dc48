"""One rank's event stream as the process takes it: into the atlas, the metrics and the log."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field

from ..events.model import Batch, MediumName
from ..events.stream import Trust
from ..events.subscription import Subscription
from ..indexer.atlas import Atlas
from ..indexer.auto_bound import AutoBound
from ..indexer.capacity import CapacityGauge, ObservedCapacity
from ..indexer.holders import FASTEST
from ..indexer.learned_bound import LearnedBound
from ..indexer.snapshot import SavedRank
from ..indexer.tiers import TierId, TierSource
from .metrics import FleetMetrics
from .predictions import Predictions

log = logging.getLogger(__name__)

MAX_ADAPTERS = 256
"""Adapters of one engine from which further ones are not looked for."""

SAME_RESTART_S = 60.0
"""A process start time that changes so soon after an event stream began anew tells of the same restart."""


@dataclass(slots=True)
class Publisher:
    """One rank's event stream; receives its batches and keeps its books in the atlas.

    Implements `events.subscription.EventSink`.
    """

    endpoint: str
    rank: int
    atlas: Atlas
    predictions: Predictions
    metrics: FleetMetrics
    subscription: Subscription | None = None
    last_batch_at: float | None = None
    """Monotonic seconds of the last batch applied."""
    lag_s: float | None = None
    """Receive time minus the publisher's time stamp of the last live batch that had one; negative for a clock ahead."""
    adapters: set[str] = field(default_factory=set[str])
    """LoRA adapters that its events have named in this life."""
    reset_at: float = -math.inf
    """Monotonic seconds of the last new life."""
    gauges: defaultdict[TierId, CapacityGauge] = field(default_factory=lambda: defaultdict(CapacityGauge))
    """What the configured tiers hold when they are full."""
    auto_bounds: defaultdict[TierId, AutoBound] = field(default_factory=lambda: defaultdict(AutoBound))
    """Bounds of tiers without a configured number, from what their gauges show."""
    bounded: dict[TierId, int | None] = field(default_factory=dict[TierId, int | None])
    """Bounds in force of tiers without a configured number."""
    learned: dict[TierId, LearnedBound] = field(default_factory=dict[TierId, LearnedBound])
    """Bounds of inferred tiers without a configured number, from the audit."""

    def apply(self, batch: Batch, *, live: bool) -> None:
        """Take a batch into the index."""
        self.last_batch_at = time.monotonic()
        ledger = self.atlas.ledger(self.endpoint, self.rank)
        counters, block_size = ledger.counters, ledger.block_size
        n_unknown = counters.unknown_removals
        self.atlas.apply(self.endpoint, self.rank, batch)
        # an engine removes what this process never heard of long before its tiers look full from here
        self._gauge(batch.removed_media if counters.unknown_removals == n_unknown else frozenset())
        if len(self.adapters) < MAX_ADAPTERS:
            self.adapters |= batch.adapters
        if (shown := ledger.block_size) is not None and shown != block_size:
            self.predictions.resized(self.endpoint, shown)
        self.predictions.events_came(self.endpoint, self.rank)
        self.metrics.batch_applied(self.endpoint, len(batch))
        for reason in batch.rejected:
            self.rejected(reason)
        if live and batch.timestamp > 0:
            # wall clocks of two machines: a negative lag is clock skew and shows as 0
            self.lag_s = time.time() - batch.timestamp
            self.metrics.event_lag.observe(max(0.0, self.lag_s))

    def reset(self, reason: str) -> None:
        """Forget what was learned: the publisher began a new life."""
        now = time.monotonic()
        # two engines on one address take turns at this: said once a minute, counted in kvatlas_stream_restarts_total
        level = logging.WARNING if now - self.reset_at > SAME_RESTART_S else logging.DEBUG
        log.log(level, "%s rank %d: starting over, %s", self.endpoint, self.rank, reason)
        self.reset_at = now
        self.atlas.reset(self.endpoint, self.rank)
        self.adapters.clear()
        self.gauges.clear()
        self.auto_bounds.clear()
        self.learned.clear()
        self.predictions.forget(self.endpoint)

    def observed(self, tier: TierId) -> ObservedCapacity | None:
        """What the tier holds when it is full; None while that is not known, and where our own bound hides it."""
        if tier in self.learned:
            return self.learned[tier].observed()
        observed = self.gauges[tier].observed() if tier in self.gauges else None
        bound = self.atlas.ledger(self.endpoint, self.rank).capacity(tier)
        return None if observed is None or (bound is not None and observed.n_blocks >= bound) else observed

    def auto_bound(self, tier: TierId) -> int | None:
        """Blocks to bound the tier to where no number is configured; None while that is not known."""
        ledger = self.atlas.ledger(self.endpoint, self.rank)
        source = ledger.sources.of(tier)
        if source is TierSource.EVENTS and self.subscription is not None:
            return self.auto_bounds[tier].follow(
                self.observed(tier),
                n_held=ledger.residencies(tier),
                n_doubts=self.subscription.stream.counters.lost + self.gauges[FASTEST].n_clears,
            )
        learned = self.learned.get(tier)
        return learned.n_blocks if source is TierSource.INFERRED and learned is not None else None

    def dump(self, *, now: float) -> SavedRank:
        """Its books and where its stream stands, at this moment."""
        position = self.subscription.stream.position() if self.subscription else None
        books = self.atlas.dump(self.endpoint, self.rank, now=now)
        return SavedRank(rank=self.rank, position=position, books=books)

    def restarted(self, reason: str) -> None:
        """Evidence from beside the event stream that the publisher began a new life."""
        if self.subscription is not None:
            self.subscription.restarted(reason)
        else:
            self.reset(reason)
            self.atlas.ledger(self.endpoint, self.rank).without_events()

    def rejected(self, reason: str) -> None:
        """Count something unreadable, and say so the first time."""
        if self.metrics.event_rejected(self.endpoint, reason):
            log.warning(
                "%s rank %d: sent something unreadable (%s); it is counted and skipped, "
                "further ones are counted in kvatlas_events_rejected_total",
                self.endpoint, self.rank, reason,
            )  # fmt: skip

    def trust_changed(self, old: Trust, new: Trust) -> None:
        """Log the transition once."""
        level = logging.WARNING if new in (Trust.PARTIAL, Trust.STALE) else logging.INFO
        log.log(level, "%s rank %d: events %s -> %s", self.endpoint, self.rank, old.value, new.value)
        self.metrics.trust_changed(new.value)

    def _gauge(self, removed: frozenset[MediumName]) -> None:
        ledger = self.atlas.ledger(self.endpoint, self.rank)
        replaced = {self.atlas.tiers.of(medium) for medium in removed}
        for number in range(len(self.atlas.tiers.names)):
            tier = TierId(number)
            self.gauges[tier].observe(ledger.residencies(tier), replaced=tier in replaced)

    @property
    def trust(self) -> Trust:
        """Belief in the publisher's state; dark without an event stream."""
        return self.subscription.trust if self.subscription else Trust.DARK
