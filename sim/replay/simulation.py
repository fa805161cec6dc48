"""One replay of a trace, with a router and engines on a virtual clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import floor, inf
from random import Random

from ...scorers.core.model import Load
from ...scorers.core.slo import Slo
from ..kv_events import EventBatch
from ..load import Counters
from ..request import Request
from ..scheduler import StepOutput
from ..traces.arrivals import Arrivals
from ..traces.content import TraceSequence, block_hashes, prompt_tokens
from ..traces.trace import Trace, TraceRequest
from ..virtual_engine import VirtualEngine
from .fleet_spec import FleetSpec
from .router import Router, RouteRequest


@dataclass(slots=True)
class Served:
    """One completed request; times in simulated seconds, prompt tokens by the tier in which they were found."""

    number: int
    server: str
    came_at: float
    begun_at: float = 0.0
    ended_at: float = 0.0
    n_prompt: int = 0
    n_output: int = 0
    gpu_tokens: int = 0
    cpu_tokens: int = 0
    storage_tokens: int = 0
    slo: Slo | None = None

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.begun_at - self.came_at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None without a second one."""
        return (self.ended_at - self.begun_at) / (self.n_output - 1) if self.n_output > 1 else None

    @property
    def has_met(self) -> bool:
        """Whether it met all objectives that it named."""
        slo = self.slo
        if slo is None:
            return True
        tpot_s = self.tpot_s or 0.0
        in_time = slo.ttft_ms is None or self.ttft_s * 1000.0 <= slo.ttft_ms
        return in_time and (slo.tpot_ms is None or tpot_s * 1000.0 <= slo.tpot_ms)

    @property
    def total_s(self) -> float:
        """Time to the last token."""
        return self.ended_at - self.came_at


@dataclass(slots=True)
class Replayed:
    """The results of a replay.

    Attributes:
        served: completed requests, in the order of their ends.
        counters: of each engine.
        refused: number of requests that the router rejected, or that can never fit an engine.
    """

    served: list[Served] = field(default_factory=list[Served])
    counters: list[Counters] = field(default_factory=list[Counters])
    refused: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of a replay.

    Attributes:
        speed: factor by which requests arrive faster than recorded.
        jitter_s: limit of a random delay of each request, for recordings with a coarse clock.
        scrape_s: interval at which the router reads the engines' loads.
    """

    speed: float = 1.0
    jitter_s: float = 0.0
    scrape_s: float = 0.05


class Replay:
    """One replay of a trace.

    Args:
        trace: requests.
        fleet: engines.
        router: selects the servers.
        timing: when requests arrive and loads are read.
        rng: for the jitter.
        progress: called after each request.
        on_routed: called with each request's server, the hashes of its prompt's full blocks, and its prompt tokens.

    Raises:
        SimError: the block sizes of trace and fleet are not compatible.
    """

    def __init__(
        self,
        trace: Trace,
        fleet: FleetSpec,
        router: Router,
        *,
        timing: Timing,
        rng: Random,
        progress: Callable[[], None] = lambda: None,
        on_routed: Callable[[str, array[int], int], None] | None = None,
    ) -> None:
        self._on_routed = on_routed
        self._trace, self._fleet, self._router, self._progress = trace, fleet, router, progress
        self._scrape_s = timing.scrape_s
        self._arrivals = Arrivals(trace, speed=timing.speed, jitter_s=timing.jitter_s, rng=rng)
        self._engines = {
            name: VirtualEngine(scheduler, partial(self._take, name))
            for name, scheduler in zip(fleet.names, fleet.schedulers(), strict=True)
        }
        self._loads = {name: Load(0, 0, 0.0, 0.0) for name in self._engines}
        self._n_scrapes = 0
        self._open: dict[int, Served] = {}
        self._result = Replayed(counters=[engine.scheduler.counters for engine in self._engines.values()])

    def run(self) -> Replayed:
        """Replay the whole trace.

        Cost: O(blocks + tokens / block size), about 5 us per block, plus the router.
        """
        engines, now = list(self._engines.values()), 0.0
        while True:
            comes_at = self._arrivals.next_at(now)
            works_at = min(engine.next_at for engine in engines)
            now = min(comes_at, works_at)
            if now == inf:
                return self._result
            if works_at <= comes_at:
                for engine in engines:
                    if engine.next_at <= now:
                        engine.advance(now)
            else:
                self._arrive(self._arrivals.take(), now)

    def _arrive(self, number: int, now: float) -> None:
        request, size = self._trace.requests[number], self._fleet.block_size
        hashes = block_hashes(request, number, id_tokens=self._trace.block_size, block_size=size)
        tokens = prompt_tokens(hashes, n_prompt=request.n_prompt, block_size=size)
        self._scrape(now)
        slo = _slo_of(request)
        server = self._router.route(RouteRequest(number, now, tokens, request.session, self._loads, slo))
        if server is None:
            self._refuse(number, now)
            return
        if self._on_routed is not None:
            self._on_routed(server, hashes[: request.n_prompt // size], request.n_prompt)
        engine = self._engines[server]
        engine.advance(now)
        self._open[number] = Served(
            number, server, now, n_prompt=request.n_prompt, n_output=request.n_output, slo=slo
        )
        sequence = TraceSequence(hashes, n_prompt=request.n_prompt, block_size=size)
        prompt, output = range(request.n_prompt), range(request.n_output)
        try:
            engine.add(Request(str(number), prompt, output, sequence=sequence), now)
        except ValueError:  # it can never fit an engine of the fleet
            del self._open[number]
            self._router.ended(number)
            self._refuse(number, now)

    def _refuse(self, number: int, now: float) -> None:
        self._result.refused += 1
        self._arrivals.ended(number, now)
        self._progress()

    def _scrape(self, now: float) -> None:
        """Read the loads as of the last scrape time."""
        n_scrapes = floor(now / self._scrape_s)
        if n_scrapes == self._n_scrapes:
            return
        self._n_scrapes, at = n_scrapes, n_scrapes * self._scrape_s
        for name, engine in self._engines.items():
            engine.advance(at)
            load = engine.scheduler.load
            self._loads[name] = Load(load.waiting, load.running, load.kv_usage, updated_at=at)

    def _take(self, server: str, now: float, output: StepOutput) -> None:
        if output.events:
            self._router.published(server, EventBatch(ts=now, events=output.events))
        for generated in output.tokens:
            request, number = generated.request, int(generated.request.request_id)
            if request.n_generated == len(generated.tokens):
                self._open[number].begun_at = now
                self._router.begun(number, now)
            if generated.finished:
                self._end(self._open.pop(number), request, now)

    def _end(self, served: Served, request: Request, now: float) -> None:
        served.ended_at = now
        served.gpu_tokens, served.storage_tokens = request.gpu_tokens, request.fetched_tokens
        served.cpu_tokens = (request.cached_tokens or 0) - request.gpu_tokens - request.fetched_tokens
        self._result.served.append(served)
        self._router.ended(served.number, tpot_s=served.tpot_s, n_output=served.n_output)
        self._arrivals.ended(served.number, now)
        self._progress()


def _slo_of(request: TraceRequest) -> Slo | None:
    if request.ttft_ms is None and request.tpot_ms is None:
        return None
    return Slo(request.ttft_ms, request.tpot_ms)
