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
    unkeyed: int = 0
    """Blocks told by hashes that no key can be made of: standard ones of an adapter, of another seed or without block size."""
    other_tenants: int = 0
    """Events of another tenant than the publisher's."""
    evicted: int = 0
