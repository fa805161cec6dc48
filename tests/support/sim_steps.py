"""A simulated scheduler run without a clock."""

from __future__ import annotations

from collections.abc import Iterator

from kvatlas.sim.kv_events import Event
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler


def serve_to_end(scheduler: Scheduler, *requests: Request) -> Iterator[tuple[Event, ...]]:
    """Give `requests` to the engine and step it until it is idle; return the batches it publishes."""
    for request in requests:
        scheduler.add(request)
    now = 0.0
    while True:
        run = scheduler.begin_step(now)
        if run is not None:
            now += run.first_s
            if events := scheduler.end_step().events:
                yield events
            continue
        copy_at = scheduler.next_copy_at()
        if copy_at is None:
            return
        now = copy_at
