"""Speed of the block index: match, store, remove, removal of a server, keys, and match while storing flat out.

Use: python bench/match.py [--servers 64] [--rounds 200]

Every engine gets the same fleet (`fleet.py`); queries are interleaved, so that all meet the same state of the machine.
Dynamo's RadixTree, one tree a tier, takes part where `ai-dynamo-runtime` is installed; it knows no events but JSON, so
writing and reading JSON is part of its rates. Latencies are of one match for the whole fleet with the result as Python
objects; rates and removals are CPU time of all threads, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol

import msgspec
from fleet import AGENT, EVENT_BLOCKS, LONG, SHORT, Fleet, events_of, make_fleet, make_keys

from kvatlas.events.model import BlockStored, EngineHash, MediumName
from kvatlas.indexer.atlas import Atlas
from kvatlas.indexer.factory import IndexCore, index_core
from kvatlas.indexer.index import BlockIndex, HolderId
from kvatlas.indexer.match import RankLayout
from kvatlas.indexer.native_index import NativeIndex
from kvatlas.indexer.reference import ReferenceIndex
from kvatlas.indexer.tiers import TierSpec, TierTable

BLOCK_SIZE = 16
N_TIERS = 2
SETTLE_S = 20
"""The system gives huge pages to tables that have been filled for some seconds, as those of a server have."""


class Engine(Protocol):
    """What is measured. A holder is a (server, tier) pair, `server * 2 + tier`."""

    name: str

    def expect(self, prompts: list[array[int]]) -> None:
        """Whole prompts whose events come next; not measured."""
        ...

    def store(self, holder: int, keys: array[int]) -> None:
        """Take a store event of up to `EVENT_BLOCKS` blocks."""
        ...

    def remove(self, holder: int, keys: array[int]) -> None:
        """Take a removal."""
        ...

    def drop(self, server: int) -> None:
        """Forget a server."""
        ...

    def match(self, keys: array[int]) -> dict[int, tuple[int, ...]]:
        """Blocks by tier of every server that holds any."""
        ...


class OurEngine:
    """A `BlockIndex` of ours with one holder a server and tier."""

    def __init__(self, name: str, index: BlockIndex, n_servers: int) -> None:
        self.name = name
        self.index = index
        self.holders = [index.open() for _ in range(N_TIERS * n_servers)]
        layouts = [
            RankLayout((1 << self.holders[i], 1 << self.holders[i + 1]), (1, 1))
            for i in range(0, N_TIERS * n_servers, N_TIERS)
        ]
        self.matcher = index.matcher(layouts, block_size=BLOCK_SIZE)

    def expect(self, prompts: list[array[int]]) -> None:
        """See `Engine.expect`: our events need nothing else."""

    def store(self, holder: int, keys: array[int]) -> None:
        """See `Engine.store`."""
        self.index.store(self.holders[holder], keys)

    def remove(self, holder: int, keys: array[int]) -> None:
        """See `Engine.remove`."""
        self.index.remove(self.holders[holder], keys)

    def drop(self, server: int) -> None:
        """See `Engine.drop`."""
        for holder in range(server * N_TIERS, server * N_TIERS + N_TIERS):
            self.index.close(self.holders[holder])
            self.holders[holder] = self.index.open()

    def match(self, keys: array[int]) -> dict[int, tuple[int, ...]]:
        """See `Engine.match`."""
        matches = self.matcher.match(keys, n_tokens=len(keys) * BLOCK_SIZE)
        return {server: match.tier_blocks for server, match in matches.items()}


class DynamoEngine:
    """Dynamo's RadixTree, one a tier; its events are JSON."""

    name = "RadixTree x2"

    def __init__(self, core: ModuleType) -> None:
        self.trees: list[Any] = [core.RadixTree() for _ in range(N_TIERS)]
        self.parents: dict[int, int] = {}

    def expect(self, prompts: list[array[int]]) -> None:
        """See `Engine.expect`: events name the block before them."""
        for keys in prompts:
            self.parents |= {
                keys[head]: keys[head - 1] for head in range(EVENT_BLOCKS, len(keys), EVENT_BLOCKS)
            }

    def store(self, holder: int, keys: array[int]) -> None:
        """See `Engine.store`."""
        blocks = [{"block_hash": key, "tokens_hash": key} for key in keys]
        parent = self.parents.get(keys[0])
        self._apply(holder, {"stored": {"parent_hash": parent, "blocks": blocks}})

    def remove(self, holder: int, keys: array[int]) -> None:
        """See `Engine.remove`."""
        self._apply(holder, {"removed": {"block_hashes": list(keys)}})

    def drop(self, server: int) -> None:
        """See `Engine.drop`."""
        for tree in self.trees:
            tree.remove_worker(server)

    def match(self, keys: array[int]) -> dict[int, tuple[int, ...]]:
        """See `Engine.match`."""
        asked = list(keys)
        scores = [tree.find_matches(asked).scores for tree in self.trees]
        return {
            server: tuple(s.get((server, 0), 0) for s in scores) for server, _ in {**scores[0], **scores[1]}
        }

    def _apply(self, holder: int, data: dict[str, Any]) -> None:
        event = msgspec.json.encode({"event_id": 1, "data": data, "dp_rank": 0})
        self.trees[holder % N_TIERS].apply_event(holder // N_TIERS, event)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    fleet = make_fleet(arguments.servers)
    engines: list[Engine] = [
        OurEngine("native", NativeIndex(), arguments.servers),
        OurEngine("reference", ReferenceIndex(), arguments.servers),
    ]
    if find_spec("dynamo") is not None:
        engines.append(DynamoEngine(import_module("dynamo._core")))
    print(f"{arguments.servers} servers, {fleet.n_residencies} residencies\n")
    bench_store(engines, fleet)
    time.sleep(SETTLE_S)
    bench_match(engines, fleet, arguments.rounds)
    bench_churn(engines, arguments.rounds)
    bench_contention(engines[:2], fleet)
    bench_bounded()
    bench_drop(engines, arguments.servers)
    bench_keys()
    bench_atlas(arguments.rounds)


def bench_store(engines: list[Engine], fleet: Fleet) -> None:
    """Million blocks a second into an empty index."""
    print("store (M blocks/s)")
    for engine in engines:
        print(f"  {engine.name:14}{fleet.n_residencies / fill(engine, fleet) / 1e6:8.2f}")


def fill(engine: Engine, fleet: Fleet) -> float:
    """Seconds for all store events of the fleet."""
    seconds = 0.0
    for holder, prompts in enumerate(p for server in fleet.servers for p in (server.gpu, server.cpu)):
        engine.expect(prompts)
        for keys in events_of(prompts):
            seconds += cpu_time(partial(engine.store, holder, keys))
    return seconds


def bench_match(engines: list[Engine], fleet: Fleet, rounds: int) -> None:
    """Match latency, engines interleaved."""
    rng = random.Random(2)
    print(
        f"\n{'match (us)':16}"
        + "".join(f"{engine.name + ' p50':>22}{'p99':>8}" for engine in engines)
        + "  ratio"
    )
    misses = [make_keys(rng, LONG) for _ in range(20)]
    asked = {f"hit {n}": fleet.prompts[n] for n in (SHORT, LONG, AGENT)} | {f"miss {LONG}": misses}
    for label, prompts in asked.items():
        times: list[list[float]] = [[] for _ in engines]
        for number in range(rounds):
            keys = prompts[number * 7 % len(prompts)]
            answers: list[dict[int, tuple[int, ...]]] = []
            for engine, own in zip(engines, times, strict=True):
                begin = time.perf_counter()
                answers.append(engine.match(keys))
                own.append(time.perf_counter() - begin)
            if any(answer != answers[0] for answer in answers):
                raise SystemExit(f"{label}: the engines do not agree")
        print_latencies(label, times)


def print_latencies(label: str, times: list[list[float]]) -> None:
    medians = [statistics.median(own) * 1e6 for own in times]
    cells = "".join(
        f"{median:22.1f}{percentile(own, 99) * 1e6:8.0f}" for median, own in zip(medians, times, strict=True)
    )
    print(f"  {label:14}{cells}  " + " : ".join(f"{median / medians[0]:.1f}" for median in medians))


def bench_churn(engines: list[Engine], rounds: int) -> None:
    """Stores and removals of new conversations in a full index."""
    print("\nchurn: new prompts of 300 blocks stored, later removed (M blocks/s: store, remove)")
    rng = random.Random(3)
    prompts = [make_keys(rng, 300) for _ in range(rounds)]
    for engine in engines:
        stores, removals = [
            [cpu_time(partial(action, number % 8, keys)) for number, keys in enumerate(prompts)]
            for action in (engine.store, engine.remove)
        ]
        rates = [300 / statistics.median(times) / 1e6 for times in (stores, removals)]
        print(f"  {engine.name:14}{rates[0]:8.2f}{rates[1]:8.2f}")


def bench_contention(engines: list[Engine], fleet: Fleet) -> None:
    """Match latency while another thread stores and removes without a pause; the asking thread wakes every ms."""
    print(f"\nhit {LONG} while storing flat out (us p50, p99: alone -> with; M blocks/s stored meanwhile)")
    rng = random.Random(4)
    news = [make_keys(rng, EVENT_BLOCKS) for _ in range(50)]
    for engine in engines:
        alone = paced(engine, fleet.prompts[LONG])
        is_done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            begin = time.perf_counter()
            ingest = pool.submit(churn_until, is_done, engine, news)
            busy = paced(engine, fleet.prompts[LONG])
            is_done.set()
            rate = ingest.result() / (time.perf_counter() - begin) / 1e6
        p50, p99 = ([percentile(times, share) * 1e6 for times in (alone, busy)] for share in (50, 99))
        print(
            f"  {engine.name:14}{p50[0]:8.0f} ->{p50[1]:7.0f}   {p99[0]:8.0f} ->{p99[1]:7.0f}   {rate:6.2f}"
        )


def churn_until(is_done: threading.Event, engine: Engine, news: list[array[int]]) -> int:
    """Blocks stored and removed until `is_done`."""
    n_blocks = 0
    while not is_done.is_set():
        for action in (engine.store, engine.remove):
            for keys in news:
                action(3, keys)
                n_blocks += len(keys)
    return n_blocks


def paced(engine: Engine, prompts: list[array[int]]) -> list[float]:
    """Match latencies of a thread that waits between queries."""
    times: list[float] = []
    for number in range(500):
        time.sleep(0.001)
        times.append(timed(partial(engine.match, prompts[number % len(prompts)])))
    return times


def bench_bounded() -> None:
    """Stores into one holder at its capacity: every block evicts one."""
    print("\nstore with a capacity of 41000 blocks, evicting (M blocks/s)")
    rng = random.Random(5)
    events = [make_keys(rng, 512) for _ in range(600)]
    indexes: list[tuple[str, BlockIndex]] = [("native", NativeIndex()), ("reference", ReferenceIndex())]
    for name, index in indexes:
        holder: HolderId = index.open()
        index.set_capacity(holder, 41_000)
        seconds = sum(cpu_time(partial(index.store, holder, keys)) for keys in events)
        print(f"  {name:14}{512 * len(events) / seconds / 1e6:8.2f}")


def bench_drop(engines: list[Engine], n_servers: int) -> None:
    """Removal of whole servers, the last 16 of them."""
    print("\nremoval of a server (ms, median)")
    for engine in engines:
        times = [cpu_time(partial(engine.drop, server)) for server in range(n_servers)[-16:]]
        print(f"  {engine.name:14}{statistics.median(times) * 1e3:8.2f}")


def bench_keys() -> None:
    """Keys of a prompt of 30k tokens."""
    print("\nkeys of 30000 tokens in blocks of 16 (us, median)")
    tokens = array("I", random.Random(6).randbytes(4 * 30_000))
    for core in (index_core("native"), index_core("reference")):
        times = [cpu_time(partial(core.prefix_keys, tokens, BLOCK_SIZE, seed=0)) for _ in range(200)]
        print(f"  {core.name:14}{statistics.median(times) * 1e6:8.0f}")


def bench_atlas(rounds: int) -> None:
    """What a request pays for the matches of all endpoints: CPU time of `Atlas.match`, keys known, cores interleaved."""
    print(f"\natlas: matches of all endpoints for {LONG} blocks (us, median)")
    tokens = array("I", random.Random(7).randbytes(4 * BLOCK_SIZE * LONG))
    cores = [index_core("native"), index_core("reference")]
    for n_endpoints, n_holding in ((64, 64), (512, 8)):
        atlases = [make_atlas(core, n_endpoints, tokens, n_holding) for core in cores]
        prefix = atlases[0].prefix(tokens)
        times: list[list[float]] = [[] for _ in atlases]
        for _ in range(rounds):
            for atlas, own in zip(atlases, times, strict=True):
                own.append(cpu_time(partial(atlas.match, prefix)))
        print_latencies(f"{n_holding} of {n_endpoints}", times)


def make_atlas(core: IndexCore, n_endpoints: int, tokens: array[int], n_holding: int) -> Atlas:
    """The first `n_holding` endpoints hold the whole prompt in both tiers, the others its second block alone."""
    tiers = TierTable([TierSpec("gpu", ("GPU",)), TierSpec("cpu", ("CPU",))])
    atlas = Atlas(tiers=tiers, seed=0, core=core)
    for number in range(n_endpoints):
        held = tokens if number < n_holding else tokens[BLOCK_SIZE : 2 * BLOCK_SIZE]
        hashes = tuple(EngineHash(block + 1) for block in range(len(held) // BLOCK_SIZE))
        atlas.add(str(number))
        for medium in ("GPU", "CPU"):
            event = BlockStored(hashes, None, held, BLOCK_SIZE, MediumName(medium))
            atlas.apply(str(number), 0, [event])
    return atlas


def percentile(times: list[float], share: int) -> float:
    return statistics.quantiles(times, n=100)[share - 1]


def timed(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    action()
    return clock() - begin


def cpu_time(action: Callable[[], object]) -> float:
    return timed(action, time.process_time)


if __name__ == "__main__":
    main()
