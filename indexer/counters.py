"""Counters of one publisher's ledger."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class LedgerCounters:
    """Events and blocks that the ledger could not use, and evictions, since the publisher was registered."""

    unknown_removals: int = 0
    block_size_mismatches: int = 0
    ignored_groups: int = 0
    ignored_tiers: int = 0
    pending_dropped: int = 0
    foreign_orphans: int = 0
    reported_again: int = 0
    evicted: int = 0
