"""Cost of the observers of routed requests: capacity curve, recorder, shadow.

Every request has a prompt of its own behind one of eight openings, whose keys at the fleet's block size are known, as they are
after a decision. Times are CPU time of the thread that does the work, the median of batches of 20 requests.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

from kvatlas.configs.observers import CapacityCurveConfig, RecorderConfig, ShadowConfig
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.routing.observers.capacity.curve import CHUNK_TOKENS, MAX_CHUNKS
from kvatlas.routing.observers.recorder.recorder import Recorder
from kvatlas.routing.observers.shadow.shadow import Shadow
from kvatlas.routing.outcome import Completion, Outcome, Response, Usage
from kvatlas.routing.router import Route
from kvatlas.scorers.core.shadow import Draws, Repeat

from ..common.benchmark import Benchmark
from ..common.tables import Cell, Table
from ..common.timing import microseconds
from .decision import PROFILE, REQUEST, Fleet

BATCH = 20
N_ENDPOINTS = 64
BLOCK_SIZE = 16
DECISION = Fleet(1).decide()


def prompts(n_requests: int, n_tokens: int) -> list[Prefix]:
    """Return prompts whose first two thirds are one of eight openings."""
    n_shared = n_tokens * 2 // 3
    openings = [_tokens(n_shared) for _ in range(8)]
    made = [
        Prefix(random.choice(openings) + _tokens(n_tokens - n_shared), make_keys=index_core().prefix_keys)
        for _ in range(n_requests)
    ]
    for prefix in made:
        prefix.keys(BLOCK_SIZE)
    return made


def _tokens(count: int) -> array[int]:
    return array("I", (random.getrandbits(17) for _ in range(count)))


def median_us(step: Callable[[Prefix], object], prefixes: Sequence[Prefix]) -> float:
    """Return the CPU time of one step, the median over batches."""

    def next_step(batch: Iterator[Prefix]) -> None:
        step(next(batch))

    batches = [iter(prefixes[start : start + BATCH]) for start in range(0, len(prefixes) - BATCH + 1, BATCH)]
    return statistics.median(microseconds(partial(next_step, batch), BATCH) for batch in batches)


def curve_costs(prefixes: Sequence[Prefix]) -> Table:
    """Return the cost of the size curve: first while every block is followed, then with the sample as thin as it gets."""
    config = CapacityCurveConfig()
    distances = index_core().reuse_distances(
        max_keys=config.max_keys_per_endpoint, max_capacity=MAX_CHUNKS, half_life_s=config.half_life
    )
    stride, times = CHUNK_TOKENS // BLOCK_SIZE, count()

    def follow(prefix: Prefix) -> None:
        distances.use(prefix.keys(BLOCK_SIZE), stride, None, float(next(times)))

    first = median_us(follow, prefixes[:BATCH])
    later = median_us(follow, prefixes[BATCH:])
    look = microseconds(lambda: distances.hits([1000, 10_000, 100_000], now=float(next(times))))
    return _table(
        "capacity",
        "capacity curve",
        [
            ("a request, the first ones", "us", first),
            ("a request, later", "us", later),
            ("blocks followed later: 1 in", "", round(1 / distances.rate)),
            ("reading the curve", "us", look),
        ],
    )


async def recorder_costs(prefixes: Sequence[Prefix]) -> Table:
    """Return the cost of recording."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(RecorderConfig(folder=folder))

        def record(prefix: Prefix) -> None:
            route = Route(("a:80",), DECISION, arrival=recorder.routed(DECISION, prefix))
            response = Response(usage=Usage(output_tokens=100))
            recorder.ended(Completion("", route, Outcome.COMPLETED, response=response))

        on_loop = median_us(record, prefixes)
        begin = time.process_time_ns()
        recorder.start()
        await recorder.stop()
        beside = (time.process_time_ns() - begin) / len(prefixes) / 1000
        n_bytes = recorder.files.size_bytes / len(prefixes)
    return _table(
        "recorder",
        "recorder",
        [
            ("a request, on the event loop", "us", on_loop),
            ("a request, in a thread", "us", beside),
            ("a request, on disk", "KiB", n_bytes / 1024),
        ],
    )


async def shadow_costs(n_requests: int) -> Table:
    """Return the cost of a shadow with the default weights, beside a decision."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shadow.yaml"
        await asyncio.to_thread(file.write_text, "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n")
        shadow = Shadow(ShadowConfig(file=str(file), max_cpu=1.0), KVAtlasConfig(api_version="kvatlas/v1"))
        await shadow.look()
        await shadow.look()
    fleet = Fleet(N_ENDPOINTS)
    decisions = [fleet.decide() for _ in range(n_requests)]
    for decision in decisions:
        shadow.routed(REQUEST, decision, Repeat(decision.candidates, Draws(random.random)))
    begin = time.thread_time_ns()
    await asyncio.sleep(0)
    taken = (time.thread_time_ns() - begin) / n_requests / 1000
    candidates = decisions[0].candidates
    alone = median_us(
        lambda _: PROFILE.decide(REQUEST, candidates, rng=random.random), [Prefix(array("I"))] * n_requests
    )
    return _table(
        "shadow",
        f"shadow, {N_ENDPOINTS} endpoints",
        [("a request", "us", taken), ("the decision itself", "us", alone)],
    )


def _table(name: str, title: str, rows: Sequence[tuple[Cell, ...]]) -> Table:
    return Table(name=name, title=title, headings=("", "unit", "figure"), rows=tuple(rows))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--tokens", type=int, default=30_000, help="per prompt (30000)")
    parser.add_argument("--requests", type=int, default=400, help="measured (400)")


def run(options: argparse.Namespace) -> list[Table]:
    """Measure the three observers."""
    random.seed(1)
    prefixes = prompts(options.requests, options.tokens)
    return [
        curve_costs(prefixes),
        asyncio.run(recorder_costs(prefixes)),
        asyncio.run(shadow_costs(options.requests)),
    ]


BENCHMARK = Benchmark(name="observers", about=__doc__, add_options=add_options, run=run)
