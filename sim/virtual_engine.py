"""One simulated engine on a virtual clock, which advances from event to event as fast as possible."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .request import Request
from .scheduler import Scheduler, StepOutput
from .service_times import Run


class VirtualEngine:
    """Engine that serves requests in simulated time. The caller advances the time, never backwards.

    Args:
        scheduler: decides the steps; only this engine advances it.
        on_output: called with the time and the output of each step or run of equal steps.
    """

    def __init__(self, scheduler: Scheduler, on_output: Callable[[float, StepOutput], None]) -> None:
        self.scheduler = scheduler
        self._on_output = on_output
        self._run: Run | None = None
        self._began = 0.0
        if scheduler.connector is not None:
            scheduler.connector.apply = self.apply

    @property
    def next_at(self) -> float:
        """Time of the next event if no request arrives: a request ends, a step changes, or a copy completes."""
        if self._run is not None:
            return self._began + self._run.duration(self._run.n_steps)
        copy_at = self.scheduler.next_copy_at()
        return inf if copy_at is None else copy_at

    def add(self, request: Request, now: float) -> None:
        """Add a request that arrives at `now`, to which `advance` has advanced the engine.

        Raises:
            ValueError: the request can never fit.
        """
        self.scheduler.add(request)
        if self._run is None:
            self._begin(now)

    def apply(self, change: Callable[[], None], now: float) -> None:
        """Call a change of the scheduler's state that happens at `now`."""
        self.advance(now)
        change()
        self.scheduler.cut_run()
        if self._run is None:
            self._begin(now)

    def advance(self, now: float) -> None:
        """Run all steps that end by `now`. Cost: O(blocks + tokens / block size) of the computed tokens."""
        while (next_at := self.next_at) <= now:
            if self._run is not None:
                self._end(self._run.n_steps, next_at)
            self._begin(next_at)
        if self._run is not None and (n_steps := self._run.steps_within(now - self._began)):
            next_at = self._began + self._run.duration(n_steps)
            self._end(n_steps, next_at)
            self._begin(next_at)

    def _begin(self, now: float) -> None:
        self._began, self._run = now, self.scheduler.begin_step(now)

    def _end(self, n_steps: int, now: float) -> None:
        self._on_output(now, self.scheduler.end_step(n_steps))
