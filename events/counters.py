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
    implausible: int = 0
    """Batches dropped because their number is further ahead than a publisher can come."""
    disowned: int = 0
    """Live batches dropped because the publisher's own history does not have them."""
    lying_stamps: int = 0
    """Replays whose time stamps contradicted the live ones again within a minute; stamps are no evidence since then."""
    restarts: int = 0
    replays: int = 0
    replay_failures: int = 0
    replay_cuts: int = 0
    """Replies to replay requests that were cut off at a limit."""
