"""Two simulated engines under many requests at once, in virtual time, and what the fleet expects of each."""

from __future__ import annotations

import math
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random

import msgspec

from kvatlas.configs.address import HostPort
from kvatlas.configs.endpoints import EndpointAddresses, RankAddresses
from kvatlas.fleet.fleet import Fleet
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.predicted import Prediction
from kvatlas.indexer.prefix import Prefix
from kvatlas.sim.block_cache import BlockCache
from kvatlas.sim.kv_events import Event, EventBatch
from kvatlas.sim.request import Request
from kvatlas.sim.scheduler import Scheduler, StepOutput
from kvatlas.sim.service_times import ServiceTimes
from kvatlas.sim.virtual_engine import VirtualEngine
from support.fleets import NOWHERE, make_config, make_fleet
from vllm_check.traffic import Prompt, Traffic

BLOCK = 32
TIERS = [{"name": "gpu", "media": ["GPU"]}, {"name": "cpu", "media": ["CPU"]}]
TIMES = ServiceTimes(prefill_s_per_token=0.0002, step_s=0.02)
BUSY_TOKENS = 80.0
"""Tokens of cached prefix that one more request on a server outweighs."""


@dataclass(frozen=True)
class Caches:
    """Blocks of each engine's tiers, and requests that it runs at once."""

    gpu_blocks: int
    cpu_blocks: int
    n_running: int


@dataclass
class Sent:
    """One request.

    Attributes:
        expected: tokens expected to be reused, at the pick.
        cached: tokens that the engine reused.
        at_its_step: tokens that the index expected just before the step that began it.
    """

    request: Request
    prompt: Prompt
    prefix: Prefix
    prediction: Prediction | None
    expected: int
    at_its_step: int | None = None

    @property
    def cached(self) -> int:
        assert self.request.cached_tokens is not None
        return self.request.cached_tokens


@dataclass
class Server:
    """One engine as an endpoint, whose events arrive as they are published."""

    name: str
    fleet: Fleet
    caches: Caches
    ended: list[Sent] = field(default_factory=list[Sent])
    open: dict[Request, Sent] = field(default_factory=dict[Request, Sent])

    def __post_init__(self) -> None:
        addresses = EndpointAddresses(HostPort(self.name, 8000), None, (RankAddresses(0, NOWHERE, None),))
        self.fleet.add(self.name, addresses, {})
        found = self.fleet.get(self.name)
        assert found is not None
        self._rank = found.ranks[0]
        self._rank.ledger.use_block_size(BLOCK)
        cache = BlockCache(
            block_size=BLOCK,
            gpu_blocks=self.caches.gpu_blocks,
            cpu_blocks=self.caches.cpu_blocks,
            chunk_blocks=1,
        )
        scheduler = Scheduler(
            cache, times=TIMES, max_num_seqs=self.caches.n_running, max_num_batched_tokens=2048
        )
        self.engine = VirtualEngine(scheduler, self._output)

    def look(self) -> None:
        """Ask the index for the requests that have not begun."""
        for sent in self.open.values():
            if sent.request.cached_tokens is None:
                match = self.fleet.atlas.match(sent.prefix).get(self.name)
                sent.at_its_step = match.usable_tokens if match is not None else 0

    def _output(self, _: float, output: StepOutput) -> None:
        if output.events:
            self._apply(output.events)
        for generated in output.tokens:
            sent = self.open[generated.request]
            if sent.prediction is not None:
                sent.prediction.begun()
            if not generated.request.n_left:
                self.ended.append(self.open.pop(generated.request))
        self.look()

    def _apply(self, events: Sequence[Event]) -> None:
        batch = index_core().decode_batch(msgspec.msgpack.encode(EventBatch(0.0, tuple(events))))
        for _ in self._rank.apply(batch, live=True) or ():
            pass


@dataclass
class Crowd:
    """Clients that each send their next request when the one before has ended."""

    fleet: Fleet
    servers: list[Server]
    seed: int

    def __post_init__(self) -> None:
        self._rng, self._traffic, self._numbers = Random(self.seed), Traffic(self.seed), count()

    def run(self, *, n_requests: int, at_once: int) -> list[Sent]:
        """Return the requests in the order in which they ended."""
        done: list[Sent] = []
        left = n_requests
        for _ in range(at_once):
            self._send(0.0)
            left -= 1
        while (now := min(server.engine.next_at for server in self.servers)) < math.inf:
            for server in self.servers:
                server.engine.advance(now)
                for sent in server.ended:
                    done.append(sent)
                    self._traffic.answered(sent.prompt, tuple(sent.request.output), "")
                    if left:
                        self._send(now)
                        left -= 1
                server.ended.clear()
        return done

    def _send(self, now: float) -> None:
        prompt = self._traffic.next()
        while prompt.tokens is None:  # a chat
            prompt = self._traffic.next()
        tokens = array("I", prompt.tokens)
        prefix = self.fleet.atlas.prefix(tokens, salt=prompt.salt)
        table = {each.name: each for each in self.fleet.candidates(prefix, now=now)}
        gains = [
            (found.usable_tokens if (found := table[each.name].prefix) else 0) - BUSY_TOKENS * len(each.open)
            for each in self.servers
        ]
        server = self.servers[gains.index(max(gains))]
        picked = table[server.name]
        prediction = self.fleet.routed(picked, prefix, now=now)
        output = array("I", self._rng.choices(range(400), k=self._rng.choice((1, 4, 12))))
        request = Request(f"r{next(self._numbers)}", tokens, output, salt=prompt.salt)
        expected = picked.prefix.usable_tokens if picked.prefix is not None else 0
        server.open[request] = Sent(request, prompt, prefix, prediction, expected)
        server.look()
        server.engine.add(request, now)


@asynccontextmanager
async def crowd(caches: Caches, *, seed: int) -> AsyncGenerator[Crowd]:
    async with make_fleet(make_config(tiers=TIERS)) as fleet:
        yield Crowd(fleet, [Server(name, fleet, caches) for name in ("a", "b")], seed)
