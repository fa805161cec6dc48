"""One data-parallel rank of an endpoint: receives its event batches for the index, the metrics and the log."""

from __future__ import annotations

import logging
import math
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..events.bootstrap import APPLIED
from ..events.line_limit import LineLimit
from ..events.model import Batch, MediumName
from ..events.runs import Run
from ..events.stream import Trust
from ..events.subscription import Subscription
from ..indexer.atlas import Atlas
from ..indexer.auto_bound import AutoBound
from ..indexer.capacity import CapacityGauge, ObservedCapacity
from ..indexer.draft import RankDraft
from ..indexer.holders import FASTEST
from ..indexer.learned_bound import LearnedBound
from ..indexer.ledger import RankLedger
from ..indexer.snapshot import SavedRank
from ..indexer.tiers import TierId, TierSource
from .metrics import FleetMetrics
from .predictions import Predictions
from .rank_draft import SLICE_COST, SnapshotDraft

if TYPE_CHECKING:
    from ..events._native import Inbox as NativeMessages

log = logging.getLogger(__name__)

MAX_ADAPTERS = 256
"""Adapter names kept per rank; further names are ignored."""

MAX_MESSAGE_COST = 10_000_000
"""Work for one message, ten seconds; the rest of it is dropped. The largest messages of engines take two."""

CONNECTING_S = 0.5
"""Longest wait at the start for the connection to a publisher; a network answers or refuses within milliseconds."""

UNANSWERED_S = 2.0
"""Longest wait at the start for the first reply to a replay request."""

REPLAYING_S = 5.0
"""Longest wait at the start for the rest of a history that has begun to come."""

SAME_RESTART_S = 60.0
"""A process start time that changes within this time after a reset belongs to the same restart."""


@dataclass(slots=True)
class Rank:
    """One rank of an endpoint, with its ledger in the index and its event subscription.

    Implements `events.sink.EventSink`. The ledger is the atlas's own object: `Atlas.reset` and loading a snapshot
    change it in place. The atlas drops it only when the rank is removed, and `Subscriptions.leave` then stops this sink.
    """

    endpoint: str
    number: int
    """Number of the rank, from 0."""
    atlas: Atlas
    ledger: RankLedger
    predictions: Predictions
    metrics: FleetMetrics
    on_trust: Callable[[str, int, Trust], None]
    """Called with endpoint, rank and trust when that changes."""
    subscription: Subscription | None = None
    """None if the rank publishes no events."""
    last_batch_at: float | None = None
    """Monotonic seconds of the last batch applied."""
    lag_s: float | None = None
    """Receive time minus the publisher's timestamp of the last live batch that had one.

    Negative if the publisher's clock is ahead.
    """
    adapters: set[str] = field(default_factory=set[str])
    """LoRA adapters named in events since the last reset."""
    reset_at: float = -math.inf
    """Monotonic seconds of the last reset."""
    gauges: defaultdict[TierId, CapacityGauge] = field(default_factory=lambda: defaultdict(CapacityGauge))
    """Measured capacity of each configured tier when it is full."""
    auto_bounds: defaultdict[TierId, AutoBound] = field(default_factory=lambda: defaultdict(AutoBound))
    """Bounds of tiers without a configured number, from their gauges."""
    bounded: dict[TierId, int | None] = field(default_factory=dict[TierId, int | None])
    """Bounds in force of tiers without a configured number."""
    learned: dict[TierId, LearnedBound] = field(default_factory=dict[TierId, LearnedBound])
    """Bounds of inferred tiers without a configured number, from the audit."""
    seen_elsewhere: dict[TierId, ObservedCapacity] = field(default_factory=dict[TierId, ObservedCapacity])
    """Capacities that other processes observed."""
    trust_lines: defaultdict[Trust, LineLimit] = field(default_factory=lambda: defaultdict(LineLimit))
    """Log lines of changes of trust, by new trust: events that are often damaged change it many times a second."""
    reset_lines: LineLimit = field(default_factory=LineLimit)
    """Log lines of resets: two engines on one address, or one that crashes soon after each start, cause many."""

    def apply(self, batch: Batch, *, live: bool) -> Iterator[None] | None:
        """Apply a batch to the index: a first slice at once, the rest as the result is iterated."""
        self.last_batch_at = time.monotonic()
        if live and batch.timestamp > 0:
            # clocks of two machines: a negative lag is clock skew and is observed as 0
            self.lag_s = time.time() - batch.timestamp
            self.metrics.event_lag.observe(max(0.0, self.lag_s))
        slices = self._slices(batch)
        for _ in slices:
            return slices
        return None

    def apply_run(self, inbox: NativeMessages, seq: int) -> Run | None:
        """Apply ordinary messages, as `EventSink.apply_run` says; gauges and predictions follow once, after the last one."""
        run = self.ledger.run(inbox, seq)
        if run is None or not run.timestamps:
            return run
        self.last_batch_at, now = time.monotonic(), time.time()
        timestamps = array("d", run.timestamps)
        for timestamp in timestamps:
            if timestamp > 0:
                self.lag_s = now - timestamp
                self.metrics.event_lag.observe(max(0.0, self.lag_s))
        self._gauge_removals(run)
        if run.adapters:
            self._name_adapters(run.adapters)
        self.predictions.confirm(self.endpoint, self.ledger)
        self.metrics.batches_applied(
            self.endpoint, len(timestamps) - (run.failure is not None), n_events=run.n_events
        )
        return run

    def _slices(self, batch: Batch) -> Iterator[None]:
        total = since = 0
        ledger = self.ledger
        n_unknown, block_size = ledger.counters.unknown_removals, ledger.block_size
        for cost in ledger.steps(batch):
            total, since = total + cost, since + cost
            if total > MAX_MESSAGE_COST:
                self.rejected("too_slow")
                if self.subscription is not None:
                    self.subscription.damaged()
                return
            if since >= SLICE_COST:
                since = 0
                yield
        # a removal of an unknown block is no evidence that a tier is full: this process may have missed the store
        all_known = ledger.counters.unknown_removals == n_unknown and not batch.n_unknown_removals
        self._gauge(batch.removed_media if all_known else frozenset())
        if adapters := batch.adapters:
            self._name_adapters(adapters)
        if (shown := ledger.block_size) is not None and shown != block_size:
            self.predictions.resized(self.endpoint, shown)
        self.predictions.confirm(self.endpoint, ledger)
        self.metrics.batches_applied(self.endpoint, 1, n_events=len(batch))
        if rejected := batch.rejected:
            for reason, n_events in Counter(rejected).items():
                self.rejected(reason, n_events)

    def _name_adapters(self, adapters: Iterable[str]) -> None:
        if not (fresh := set(adapters) - self.adapters):
            return
        room = MAX_ADAPTERS - len(self.adapters)
        self.adapters.update(sorted(fresh)[:room])
        if len(fresh) > room:
            self.rejected("too_many_adapters", len(fresh) - room)

    def reset(self, reason: str) -> None:
        """Forget everything learned from the publisher, because it restarted."""
        now = time.monotonic()
        # two engines on one address cause a reset per batch: all are counted in kvatlas_stream_restarts_total
        if (more := self.reset_lines.line(now)) is not None:
            log.warning("%s rank %d: starting over, %s%s", self.endpoint, self.number, reason, more)
        self.reset_at = now
        self.atlas.reset(self.endpoint, self.number)
        self.adapters.clear()
        self.gauges.clear()
        self.auto_bounds.clear()
        self.learned.clear()
        self.seen_elsewhere.clear()
        self.predictions.forget(self.endpoint)

    def draft(self) -> SnapshotDraft:
        """Return an empty state, to be built from a snapshot of the publisher. Implements `EventSink.draft`."""
        return SnapshotDraft(RankDraft(self.atlas, self.ledger), self._adopted)

    def _adopted(self, adapters: frozenset[str]) -> None:
        self.last_batch_at = time.monotonic()
        self.adapters.clear()
        self._name_adapters(adapters)
        self._gauge(())
        self.predictions.confirm(self.endpoint, self.ledger)

    def snapshot_ended(self, outcome: str, seconds: float) -> None:
        """Count a snapshot of the publisher. Implements `EventSink.snapshot_ended`."""
        if outcome == APPLIED:
            log.info("%s rank %d: has a snapshot, after %.2f s", self.endpoint, self.number, seconds)
        self.metrics.snapshot_ended(outcome, seconds)

    def observed(self, tier: TierId) -> ObservedCapacity | None:
        """Return the measured capacity of a tier, None while it is unknown or hidden by our own bound."""
        if tier in self.learned:
            return self.learned[tier].observed()
        observed = self.gauges[tier].observed() if tier in self.gauges else None
        observed = observed or self.seen_elsewhere.get(tier)
        bound = self.ledger.capacity(tier)
        return None if observed is None or (bound is not None and observed.n_blocks >= bound) else observed

    def auto_bound(self, tier: TierId) -> int | None:
        """Return the bound in blocks for a tier without a configured number, None while it is unknown."""
        source = self.ledger.sources.of(tier)
        if source is TierSource.EVENTS and self.subscription is not None:
            return self.auto_bounds[tier].follow(
                self.observed(tier),
                n_held=self.ledger.residencies(tier),
                n_doubts=self.subscription.stream.counters.lost + self.gauges[FASTEST].n_clears,
            )
        learned = self.learned.get(tier)
        return learned.n_blocks if source is TierSource.INFERRED and learned is not None else None

    def dump(self, *, now: float) -> SavedRank:
        """Return the ledger and the stream position of the same moment, for the snapshot.

        Cost: O(hashes + residencies).
        """
        position = self.subscription.position() if self.subscription else None
        return SavedRank(rank=self.number, position=position, books=self.ledger.dump(now=now))

    def restarted(self, reason: str) -> None:
        """Handle a restart that was detected outside the event stream."""
        if self.subscription is not None:
            self.subscription.restarted(reason)
        else:
            self.reset(reason)
            self.ledger.without_events()

    def rejected(self, reason: str, n_events: int = 1) -> None:
        """Count unreadable messages or events, and log the first of each reason."""
        if self.metrics.event_rejected(self.endpoint, reason, n_events):
            log.warning(
                "%s rank %d: sent something unreadable (%s); it is counted and skipped, "
                "further ones are counted in kvatlas_events_rejected_total",
                self.endpoint, self.number, reason,
            )  # fmt: skip

    def trust_changed(self, old: Trust, new: Trust) -> None:
        """Log and count a transition of trust."""
        if (more := self.trust_lines[new].line(time.monotonic())) is not None:
            level = logging.WARNING if new in (Trust.PARTIAL, Trust.STALE) else logging.INFO
            log.log(
                level, "%s rank %d: events %s -> %s%s", self.endpoint, self.number, old.value, new.value, more
            )
        self.metrics.trust_changed(new.value)
        self.on_trust(self.endpoint, self.number, new)

    def _gauge(self, removed: Iterable[MediumName], sizes: Sequence[int] | None = None) -> None:
        tiers = self.atlas.tiers
        replaced = [tiers.of(medium) for medium in removed]
        for tier, n_blocks in zip(tiers.configured, sizes or self.ledger.sizes(), strict=True):
            self.gauges[tier].observe(n_blocks, replaced=tier in replaced)

    def _gauge_removals(self, run: Run) -> None:
        """Observe the tiers around each message that removed blocks; between these they only grow."""
        n_tiers = len(self.atlas.tiers.configured)
        for bits, *sizes in zip(*[iter(array("Q", run.removals))] * (1 + 2 * n_tiers), strict=True):
            removed = [MediumName(medium) for bit, medium in enumerate(run.media) if bits >> bit & 1]
            self._gauge((), sizes[:n_tiers])
            self._gauge(removed, sizes[n_tiers:])
        self._gauge(())

    def awaits_history(self, *, waited_s: float) -> bool:
        """Return whether the publisher's history may still come, `waited_s` after the endpoint was added.

        A publisher that does not answer is given up soon: its engine may have no KV events.
        """
        subscription = self.subscription
        if subscription is not None and subscription.is_applying:
            return waited_s <= REPLAYING_S
        if subscription is None or subscription.trust in (Trust.LIVE, Trust.PARTIAL):
            return False
        if subscription.trust is Trust.REPLAYING:
            return waited_s <= REPLAYING_S
        if not subscription.stream.is_connected:
            return waited_s <= CONNECTING_S
        return subscription.replay is not None and waited_s <= UNANSWERED_S

    @property
    def trust(self) -> Trust:
        """Trust in the publisher's stream; dark if the rank publishes no events."""
        return self.subscription.trust if self.subscription else Trust.DARK
