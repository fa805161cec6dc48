"""Cost of siblings: messages and bytes per request, and CPU time of the replica that receives them.

Two siblings route 1,000 requests a second together for four seconds of a virtual clock, with prompts of 8,000 tokens in blocks of 16 on
64 endpoints; a response begins after half a second and ends after two. Their messages, collected for 5 ms, are then received at
once by a third replica, with its index, its table of endpoints and its plugins. CPU time is that of the thread.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import time
from array import array
from collections.abc import Callable
from random import Random

from kvatlas.configs.schema import KVAtlasConfig, PluginConfig
from kvatlas.fleet.in_flight import InFlight
from kvatlas.fleet.predictions import Predictions
from kvatlas.fleet.replicas.identity import Identity
from kvatlas.fleet.replicas.knowledge import Knowledge
from kvatlas.fleet.replicas.replica import Replica
from kvatlas.fleet.table import FleetTable
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.holders import FASTEST
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.tiers import TierSpec, TierTable
from kvatlas.routing.plan.plan import make_plan
from kvatlas.scorers.core.model import RequestView

from ..common.benchmark import Benchmark
from ..common.tables import Cell, Table
from .followers import followers

N_ENDPOINTS, BLOCK_SIZE, N_BLOCKS = 64, 16, 500
TICK_S, BEGINS_S, ENDS_S = 0.005, 0.5, 2.0
CAPACITY = 31_250
"""Blocks of an endpoint that are known from routing: the reference's default."""
N_TOKENS = N_BLOCKS * BLOCK_SIZE


class Process:
    """One replica with what a picker has of the fleet.

    Args:
        number: of the replica.
        config: its plugins.
        approximate: whether the contents of endpoints are known from routing alone.
        clock: returns seconds.
    """

    def __init__(
        self, number: int, config: KVAtlasConfig, *, approximate: bool, clock: Callable[[], float]
    ) -> None:
        identity = Identity(f"kvatlas-{number}", 1, "pool", "seed")
        knowledge = Knowledge(clock, me=identity.id)
        self._names = [f"llm/vllm-qwen3-32b-7c9d8f6b5-{number:05d}" for number in range(N_ENDPOINTS)]
        self._atlas = Atlas(
            tiers=TierTable([TierSpec(name="gpu", media=("GPU",))]), seed=0, core=index_core()
        )
        self._predictions = Predictions(self._atlas, ttl_s=2.0)
        self._table = FleetTable({}, lambda _: ())
        self._in_flight = InFlight(knowledge.bookings, on_change=self._table.set_in_flight)
        self._profile = make_plan(config).profile
        for place, name in enumerate(self._names):
            self._table.add(name, f"10.0.0.{place}:8000", {})
            self._atlas.add(name)
            for ledger in self._atlas.ledgers(name):
                if approximate:
                    ledger.without_events()
                ledger.use_block_size(BLOCK_SIZE)
            self._atlas.set_capacity(name, FASTEST, CAPACITY)
        knowledge.follow(self._atlas, self._predictions)
        knowledge.use(self._profile.shared)
        self.replica = Replica(identity, knowledge.channels)

    def route(self, now: float, rng: Random) -> tuple[Callable[[], None], Callable[[], None]]:
        """Route a new prompt; return what to call when its response begins and ends."""
        keys = array("Q", [rng.getrandbits(63) for _ in range(N_BLOCKS)])
        prefix = Prefix.from_keys({BLOCK_SIZE: keys}, n_tokens=N_TOKENS + 1)
        matches = self._predictions.matches(prefix, self._table.directory(), now=now)
        candidates = self._table.candidates(matches, now=now, stale_after_s=5.0, doubts={})
        view = RequestView(model="m", now=now, n_tokens=N_TOKENS + 1)
        decision = self._profile.decide(view, candidates, rng=rng.random).lasting()
        best = decision.best
        self._atlas.routed(best.name, prefix, best.prefix)
        prediction = self._predictions.routed(best, prefix, now=now)
        self._profile.picked(view, decision)
        booking = self._in_flight.book(best.name, tokens=best.uncached_tokens(view), now=now)

        def begun() -> None:
            booking.begun()
            if prediction is not None:
                self._predictions.begun(prediction)
            self._profile.answered(decision, ttft_s=BEGINS_S)

        def ended() -> None:
            booking.ended()
            self._profile.ended(decision, tpot_s=0.02, n_output=75)

        return begun, ended


def main(args: argparse.Namespace) -> list[Table]:
    """Measure each policy."""
    weights, latency = _config("prefix-cache-scorer"), _config("fleet-cost-scorer")
    rows = [
        ("weights, events", *measured(args, weights, approximate=False)),
        ("weights, contents from routing", *measured(args, weights, approximate=True)),
        ("latency, events", *measured(args, latency, approximate=False)),
    ]
    headings = ("policy", "messages a request", "bytes a request", "CPU a request", "share of a core")
    title = f"receiving {args.rate:.0f} requests/s of {args.siblings} siblings"
    received = Table(name="received", title=title, headings=headings, rows=tuple(rows))
    return [received, followers(args.rate)]


def measured(args: argparse.Namespace, config: KVAtlasConfig, *, approximate: bool) -> tuple[Cell, ...]:
    """Return messages, bytes, microseconds and share of a core."""
    now = 0.0

    def clock() -> float:
        return now

    senders = [
        Process(number, config, approximate=approximate, clock=clock) for number in range(args.siblings)
    ]
    receiver = Process(9, config, approximate=approximate, clock=clock)
    rng, n_requests, payloads = Random(1), 0, list[tuple[float, bytes]]()
    later: list[tuple[float, int, Callable[[], None]]] = []
    for sender in senders:  # they know of the receiver, so that they send
        for message in receiver.replica.tick(0):
            sender.replica.receive(message.payload, 0)
    next_at = 0.0
    while now < args.seconds:
        now += TICK_S
        while next_at <= now:
            next_at += rng.expovariate(args.rate)
            n_requests += 1
            begun, ended = senders[n_requests % len(senders)].route(now, rng)
            heapq.heappush(later, (now + BEGINS_S, 2 * n_requests, begun))
            heapq.heappush(later, (now + ENDS_S, 2 * n_requests + 1, ended))
        while later and later[0][0] <= now:
            heapq.heappop(later)[2]()
        for sender in senders:
            payloads += (
                (now, each.payload) for each in sender.replica.tick(round(now * 1e9)) if each.to is None
            )
        heartbeats = receiver.replica.tick(round(now * 1e9))
        for sender in senders:  # a sender that hears nobody sends nothing
            for message in heartbeats:
                sender.replica.receive(message.payload, round(now * 1e9))
    gc.collect()
    begin = time.thread_time()
    for sent_at, payload in payloads:
        now = sent_at
        receiver.replica.receive(payload, round(now * 1e9))
    spent_s = time.thread_time() - begin
    n_bytes = sum(len(payload) for _, payload in payloads)
    return (
        f"{len(payloads) / n_requests:.2f}",
        f"{n_bytes / n_requests / 1024:.1f} KiB",
        f"{1e6 * spent_s / n_requests:.1f} us",
        f"{100 * spent_s / args.seconds:.1f} %",
    )


def _config(plugin: str) -> KVAtlasConfig:
    return KVAtlasConfig(api_version="kvatlas/v1", plugins=(PluginConfig(type=plugin),))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second of all siblings")
    parser.add_argument("--siblings", type=int, default=2, help="replicas that send")
    parser.add_argument("--seconds", type=float, default=4.0, help="time on the virtual clock")


BENCHMARK = Benchmark(name="replica-cost", about=__doc__, add_options=_add_options, run=main)
