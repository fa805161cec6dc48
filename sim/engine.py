"""One simulated engine in real time: it steps its scheduler, returns tokens and publishes events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from math import inf

from .errors import EngineStoppedError, KvLoadError
from .kv_events import EventBatch
from .publisher import Publisher
from .request import Generated, Request
from .scheduler import Scheduler


class Engine:
    """Engine that serves requests step by step until it is stopped.

    Args:
        scheduler: decides the steps; only this engine advances it.
        publisher: publishes the events of each step; None for an engine without KV events.
        wall_clock: seconds since the epoch, for the timestamps of batches.
        time_scale: real seconds per simulated second; 0 runs each step without delay.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        publisher: Publisher | None,
        *,
        wall_clock: Callable[[], float],
        time_scale: float = 1.0,
    ) -> None:
        self.scheduler = scheduler
        self._publisher = publisher
        self._wall_clock = wall_clock
        self._time_scale = time_scale
        self._now = 0.0
        self._arrival = asyncio.Event()
        self._outputs: dict[str, asyncio.Queue[Generated | None]] = {}
        self._stopped = False
        if scheduler.connector is not None:
            scheduler.connector.apply = self._apply

    @property
    def running(self) -> bool:
        """Whether requests are being served."""
        return not self._stopped

    async def run(self) -> None:
        """Run steps until cancelled; pending requests then get `EngineStoppedError`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._publisher is not None:
                    tasks.create_task(self._publisher.serve_replay())
                    tasks.create_task(self._publisher.serve_snapshots())
                tasks.create_task(self._run_steps())
        finally:
            self._stopped = True
            for queue in self._outputs.values():
                queue.put_nowait(None)

    async def generate(self, request: Request) -> AsyncGenerator[Generated, None]:
        """Yield the request's tokens as they are generated; leaving the iteration early aborts the request.

        Raises:
            ValueError: the request can never fit.
            KvLoadError: its KV state did not arrive from another server.
            EngineStoppedError: the engine stopped first.
        """
        if self._stopped:
            raise EngineStoppedError(f"the engine has stopped (request={request.request_id})")
        self.scheduler.add(request)
        queue = self._outputs[request.request_id] = asyncio.Queue()
        self._arrival.set()
        try:
            while True:
                generated = await queue.get()
                if generated is None:
                    raise EngineStoppedError(f"the engine stopped (request={request.request_id})")
                if generated.has_failed:
                    raise KvLoadError(f"KV state did not arrive (request={request.request_id})")
                yield generated
                if generated.finished:
                    return
        finally:
            del self._outputs[request.request_id]
            self.scheduler.abort(request)
            self._arrival.set()  # another request may be waiting for its blocks

    async def _run_steps(self) -> None:
        loop, connector = asyncio.get_running_loop(), self.scheduler.connector
        while True:
            if self._time_scale:
                self._now = (
                    loop.time() / self._time_scale
                )  # one clock for all engines, as their transfers need it
            self._arrival.clear()
            if connector is not None:
                connector.advance(self._now)
            run = self.scheduler.begin_step(self._now)
            if run is None:
                await self._idle()
                continue
            await asyncio.sleep(run.first_s * self._time_scale)
            self._now += run.first_s
            self._end_step()

    async def _idle(self) -> None:
        """Wait for a request or the next completed copy between tiers or servers."""
        copy_at = self._next_copy_at()
        if copy_at is not None and not self._time_scale:
            self._now = max(self._now, copy_at)
            return
        timeout = None if copy_at is None else max(0.0, copy_at - self._now) * self._time_scale
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrival.wait(), timeout)

    def _next_copy_at(self) -> float | None:
        copy_at, connector = self.scheduler.next_copy_at(), self.scheduler.connector
        pull_at = inf if connector is None else connector.next_at()
        return copy_at if pull_at == inf else min(pull_at, inf if copy_at is None else copy_at)

    def _apply(self, change: Callable[[], None], _now: float) -> None:
        change()
        self._arrival.set()

    def _end_step(self) -> None:
        output = self.scheduler.end_step()
        if output.events and self._publisher is not None:
            self._publisher.publish(EventBatch(ts=self._wall_clock(), events=output.events))
        for generated in output.tokens:
            queue = self._outputs.get(generated.request.request_id)
            if queue is not None:
                queue.put_nowait(generated)
