"""What is looked at now and then, since only passing time decides it."""

from __future__ import annotations

import asyncio
import time

from ..fleet.fleet import Fleet
from ..fleet.observed_capacity import CapacityDrift
from .readiness import Readiness

HOUSEKEEPING_S = 1.0
"""Time between two looks."""

SWEPT_AT_ONCE = 4096
"""Keys of removed endpoints whose memory is freed in one go: some 0.3 ms in which no request is answered."""

SWEEP_PAUSE_S = 0.01
"""Time between two sweeps while keys are left."""


async def keep_house(fleet: Fleet, readiness: Readiness) -> None:
    """Let time pass for the fleet, and look at what has become of it, for ever."""
    drift = CapacityDrift()
    while True:
        await asyncio.sleep(HOUSEKEEPING_S)
        fleet.tick(now=time.monotonic())
        drift.look(fleet)
        readiness.look()


async def sweep(fleet: Fleet) -> None:
    """Free what removed endpoints have left in the index, for ever."""
    while True:
        n_left = fleet.atlas.sweep(n_keys=SWEPT_AT_ONCE)
        await asyncio.sleep(SWEEP_PAUSE_S if n_left else HOUSEKEEPING_S)
