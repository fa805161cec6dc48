"""One replay of a trace, with a router and engines on a virtual clock."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import floor, inf
from random import Random

from ...scorers.core.model import Load
from ...scorers.core.slo import Slo
from ..encoder import Encoder
from ..kv_events import EventBatch
from ..load import Counters
from ..request import RemoteKv, Request
from ..roles import ENCODE
from ..scheduler import StepOutput
from ..traces.arrivals import Arrivals
from ..traces.content import TraceSequence, block_hashes, prompt_tokens
from ..traces.trace import Trace, TraceRequest
from ..virtual_engine import VirtualEngine
from .fleet_spec import FleetSpec
from .router import OtherStages, Router, RouteRequest


@dataclass(slots=True)
class Served:
    """One completed request; times in simulated seconds, prompt tokens by the tier in which they were found.

    The tiers are those of the server that computed the prompt: `prefill`, if there is one, otherwise `server`.
    """

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
    prefill: str | None = None

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


@dataclass(slots=True)
class _Open:
    """A request under way.

    Attributes:
        served: what is known of it.
        hashes: of the full blocks of prompt and output.
        others: servers that do stages for the one that answers.
    """

    served: Served
    hashes: array[int]
    others: OtherStages


class Replay:
    """One replay of a trace. Stages of a request follow each other as a sidecar calls them: encode, prefill, decode.

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
        self._exchange = fleet.exchange() if fleet.roles else None
        self._engines = {
            name: VirtualEngine(scheduler, partial(self._take, name))
            for name, scheduler in zip(fleet.names, fleet.schedulers(self._exchange), strict=True)
        }
        self._encoders = {
            name: Encoder(fleet.encode_s)
            for name, role in zip(fleet.names, fleet.roles, strict=False)
            if role == ENCODE
        }
        self._encoded: list[tuple[float, int]] = []
        """Heap of requests whose media are being encoded: when they will be, number."""
        self._prefilling: dict[Request, int] = {}
        self._loads: dict[str, Load] = {}
        self._n_scrapes = -1
        self._open: dict[int, _Open] = {}
        self._result = Replayed(counters=[engine.scheduler.counters for engine in self._engines.values()])

    def run(self) -> Replayed:
        """Replay the whole trace.

        Cost: O(blocks + tokens / block size), about 5 us per block, plus the router.
        """
        engines, exchange, now = list(self._engines.values()), self._exchange, 0.0
        while True:
            comes_at = self._arrivals.next_at(now)
            works_at = min(engine.next_at for engine in engines)
            sent_at = inf if exchange is None else exchange.next_at()
            encoded_at = self._encoded[0][0] if self._encoded else inf
            now = min(comes_at, works_at, sent_at, encoded_at)
            if now == inf:
                return self._result
            if exchange is not None and sent_at == now:
                exchange.advance(now)
            elif works_at == now:
                for engine in engines:
                    if engine.next_at <= now:
                        engine.advance(now)
            elif encoded_at == now:
                self._start(heappop(self._encoded)[1], now)
            else:
                self._arrive(self._arrivals.take(), now)

    def _arrive(self, number: int, now: float) -> None:
        request, size = self._trace.requests[number], self._fleet.block_size
        hashes = block_hashes(request, number, id_tokens=self._trace.block_size, block_size=size)
        tokens = prompt_tokens(hashes, n_prompt=request.n_prompt, block_size=size)
        self._scrape(now)
        slo = _slo_of(request)
        asked = RouteRequest(number, now, tokens, request.session, self._loads, slo, request.n_media)
        server = self._router.route(asked)
        if server is None:
            self._refuse(number, now)
            return
        if self._on_routed is not None:
            self._on_routed(server, hashes[: request.n_prompt // size], request.n_prompt)
        others = self._router.other_stages(number)
        served = Served(
            number,
            server,
            now,
            n_prompt=request.n_prompt,
            n_output=request.n_output,
            slo=slo,
            prefill=others.prefill,
        )
        self._open[number] = _Open(served, hashes, others)
        if others.encode and request.n_media:
            ends = [
                self._encoders[others.encode[each % len(others.encode)]].encode(now)
                for each in range(request.n_media)
            ]
            heappush(self._encoded, (max(ends), number))
        else:
            self._start(number, now)

    def _start(self, number: int, now: float) -> None:
        """Send a request, whose media are encoded if encode servers do that, to the server that computes its prompt."""
        open_, n_media = self._open[number], self._trace.requests[number].n_media
        encode_s = 0.0 if open_.others.encode else n_media * self._fleet.encode_s
        prefill = open_.others.prefill
        if prefill is None:
            leg = self._leg(number, open_.served.n_output)
            leg.encode_s = encode_s
            self._send(open_.served.server, leg, number, now)
            return
        leg = self._leg(number, 1)
        leg.encode_s, leg.keeps_kv = encode_s, True
        self._prefilling[leg] = number
        self._send(prefill, leg, number, now)

    def _leg(self, number: int, n_output: int) -> Request:
        open_, n_prompt = self._open[number], self._trace.requests[number].n_prompt
        sequence = TraceSequence(open_.hashes, n_prompt=n_prompt, block_size=self._fleet.block_size)
        return Request(str(number), range(n_prompt), range(n_output), sequence=sequence)

    def _send(self, server: str, leg: Request, number: int, now: float) -> None:
        engine = self._engines[server]
        engine.advance(now)
        try:
            engine.add(leg, now)
        except ValueError:  # it can never fit an engine of the fleet
            self._prefilling.pop(leg, None)
            self._fail(number, now)

    def _fail(self, number: int, now: float) -> None:
        del self._open[number]
        self._router.ended(number)
        self._refuse(number, now)

    def _refuse(self, number: int, now: float) -> None:
        self._result.refused += 1
        self._arrivals.ended(number, now)
        self._progress()

    def _scrape(self, now: float) -> None:
        """Read the loads as of the last scrape time; the first one is at 0."""
        n_scrapes = floor(now / self._scrape_s)
        if n_scrapes == self._n_scrapes:
            return
        self._n_scrapes, at = n_scrapes, n_scrapes * self._scrape_s
        for name, engine in self._engines.items():
            engine.advance(at)
            load, encoder = engine.scheduler.load, self._encoders.get(name)
            n_waiting = load.waiting if encoder is None else encoder.n_queued(at)
            self._loads[name] = Load(
                n_waiting,
                load.running,
                load.kv_usage,
                updated_at=at,
                gpu_tokens=engine.scheduler.cache.gpu_tokens,
            )

    def _take(self, server: str, now: float, output: StepOutput) -> None:
        if output.events:
            self._router.published(server, EventBatch(ts=now, events=output.events))
        for generated in output.tokens:
            request, number = generated.request, int(generated.request.request_id)
            if generated.has_failed:  # the blocks were kept for it too long
                self._fail(number, now)
            elif self._prefilling.pop(request, None) is not None:
                self._decode(server, request, number, now)
            else:
                if request.n_generated == len(generated.tokens):
                    self._open[number].served.begun_at = now
                    self._router.begun(number, now)
                if generated.finished:
                    self._end(self._open.pop(number).served, request, now)

    def _decode(self, prefill: str, computed: Request, number: int, now: float) -> None:
        """Send a request whose prompt was computed on to the server that answers."""
        served = self._open[number].served
        _found_in(served, computed)
        leg = self._leg(number, served.n_output)
        leg.remote = RemoteKv(prefill, computed.request_id, len(computed.kept_blocks))
        self._send(served.server, leg, number, now)

    def _end(self, served: Served, request: Request, now: float) -> None:
        served.ended_at = now
        if served.prefill is None:
            _found_in(served, request)
        self._result.served.append(served)
        self._router.ended(served.number, tpot_s=served.tpot_s, n_output=served.n_output)
        self._arrivals.ended(served.number, now)
        self._progress()


def _found_in(served: Served, request: Request) -> None:
    served.gpu_tokens, served.storage_tokens = request.gpu_tokens, request.fetched_tokens
    served.cpu_tokens = (request.cached_tokens or 0) - request.gpu_tokens - request.fetched_tokens


def _slo_of(request: TraceRequest) -> Slo | None:
    if request.ttft_ms is None and request.tpot_ms is None:
        return None
    return Slo(request.ttft_ms, request.tpot_ms)
