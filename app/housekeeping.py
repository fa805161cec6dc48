"""Periodic tasks."""

from __future__ import annotations

import asyncio
import itertools
import time

from ..fleet.fleet import Fleet
from ..fleet.observed_capacity import CapacityDrift
from .heap import Heap
from .readiness import Readiness

HOUSEKEEPING_S = 1.0
"""Interval of the housekeeping task."""

HEAP_EVERY = 5
"""Rounds between two checks of the heap; a check holds the loop for 0.1 to 2 ms."""

SWEPT_AT_ONCE = 4096
"""Keys of removed endpoints that one sweep frees: it holds the loop for about 0.3 ms."""

SWEEP_PAUSE_S = 0.01
"""Pause between two sweeps while keys are left."""


async def keep_house(fleet: Fleet, readiness: Readiness) -> None:
    """Expire what the fleet holds, update readiness and return memory to the system, for ever."""
    drift, heap = CapacityDrift(), Heap()
    for n in itertools.count(1):
        await asyncio.sleep(HOUSEKEEPING_S)
        fleet.tick(now=time.monotonic())
        drift.look(fleet)
        readiness.update()
        if n % HEAP_EVERY == 0 and heap.is_idle():
            await asyncio.to_thread(heap.shrink)


async def sweep(fleet: Fleet) -> None:
    """Free the keys of removed endpoints in the index, for ever."""
    while True:
        n_left = fleet.atlas.sweep(n_keys=SWEPT_AT_ONCE)
        await asyncio.sleep(SWEEP_PAUSE_S if n_left else HOUSEKEEPING_S)
