"""One simulated engine on a virtual clock: its scheduler, taken from event to event as fast as the machine can."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .request import Request
from .scheduler import Scheduler, StepOutput
from .service_times import Run


class VirtualEngine:
    """Serves requests in simulated time. Who drives it moves time on, and never back.

    Args:
        scheduler: what the engine does; the engine alone advances it.
        on_output: told the time, and what a step or a run of equal steps made.
    """

    def __init__(self, scheduler: Scheduler, on_output: Callable[[float, StepOutput], None]) -> None:
        self.scheduler = scheduler
        self._on_output = on_output
        self._run: Run | None = None
        self._began = 0.0

    @property
    def next_at(self) -> float:
        """When something happens next if no request comes: a request ends, a step changes, a copy is done."""
        if self._run is not None:
            return self._began + self._run.duration(self._run.n_steps)
        copy_at = self.scheduler.next_copy_at()
        return inf if copy_at is None else copy_at

    def add(self, request: Request, now: float) -> None:
        """A request arrives; `advance` has brought the engine to `now`.

        Raises:
            ValueError: the request can never fit.
        """
        self.scheduler.add(request)
        if self._run is None:
            self._begin(now)

    def advance(self, now: float) -> None:
        """Do every step that ends by `now`. Cost: O(blocks + tokens / block size) of what is computed."""
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
