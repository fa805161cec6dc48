"""Counters of one publisher's stream."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StreamCounters:
    """Counts of one stream since it was created."""

    applied: int = 0
    duplicates: int = 0
    gaps: int = 0
    lost: int = 0
    """Batches given up because no replay had them."""
    restarts: int = 0
    replays: int = 0
    replay_failures: int = 0
