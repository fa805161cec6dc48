"""What looking on costs a request: time on the event loop, and beside it in a thread.

Use: python -m bench.observers [--tokens 30000] [--requests 400]

Every request has a prompt of its own behind one of eight openings, whose keys at the fleet's block size are known, as they are after a
decision. Times are CPU time of the thread that does the work, the median of batches of 20 requests.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from kvatlas.configs.observers import CapacityCurveConfig, RecorderConfig, ShadowConfig
from kvatlas.configs.schema import KVAtlasConfig
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.prefix import Prefix
from kvatlas.indexer.reuse_distance import ReuseDistances
from kvatlas.routing.observers.capacity.curve import CHUNK_TOKENS, MAX_CHUNKS
from kvatlas.routing.observers.recorder.recorder import Recorder
from kvatlas.routing.observers.shadow.shadow import Shadow
from kvatlas.routing.outcome import Completion, Outcome, Response, Usage
from kvatlas.routing.router import Route
from kvatlas.scorers.core.decision import Decision
from kvatlas.scorers.core.shadow import Draws

from .decision import PROFILE, REQUEST, Fleet

BATCH = 20
N_ENDPOINTS = 64
BLOCK_SIZE = 16
DECISION = Decision("", 0, (), (), (), picked=("a",), tie=False)


def prompts(n_requests: int, n_tokens: int) -> list[Prefix]:
    """Prompts whose first two thirds are one of eight openings."""
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


def microseconds(step: Callable[[Prefix], object], prefixes: Sequence[Prefix]) -> float:
    """CPU time of one step."""
    times: list[float] = []
    for start in range(0, len(prefixes), BATCH):
        batch = prefixes[start : start + BATCH]
        begin = time.thread_time_ns()
        for prefix in batch:
            step(prefix)
        times.append((time.thread_time_ns() - begin) / len(batch) / 1000)
    return statistics.median(times)


def curve_costs(prefixes: Sequence[Prefix]) -> None:
    """Print what the size curve costs: at first, when every block is followed, and once the sample is as thin as it gets."""
    config = CapacityCurveConfig()
    distances = ReuseDistances(
        max_keys=config.max_keys_per_endpoint, max_capacity=MAX_CHUNKS, half_life_s=config.half_life
    )
    stride, times = CHUNK_TOKENS // BLOCK_SIZE, count()

    def follow(prefix: Prefix) -> None:
        distances.use(prefix.keys(BLOCK_SIZE)[stride - 1 :: stride], now=float(next(times)))

    first = microseconds(follow, prefixes[:BATCH])
    later = microseconds(follow, prefixes[BATCH:])
    begin = time.thread_time_ns()
    distances.hits([1000, 10_000, 100_000], now=float(next(times)))
    look = (time.thread_time_ns() - begin) / 1000
    print(
        f"capacity curve     {later:8.1f} us ({first:.1f} us at first), of 1 in {1 / distances.rate:.0f} blocks; "
        f"{look:.0f} us to look at"
    )


async def recorder_costs(prefixes: Sequence[Prefix]) -> None:
    """Print what recording costs."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(RecorderConfig(folder=folder))

        def record(prefix: Prefix) -> None:
            route = Route(("a:80",), DECISION, arrival=recorder.routed(DECISION, prefix))
            response = Response(usage=Usage(output_tokens=100))
            recorder.ended(Completion("", route, Outcome.COMPLETED, response=response))

        on_loop = microseconds(record, prefixes)
        begin = time.process_time_ns()
        recorder.start()
        await recorder.stop()
        beside = (time.process_time_ns() - begin) / len(prefixes) / 1000
        n_bytes = recorder.files.size_bytes / len(prefixes)
    print(
        f"recorder           {on_loop:8.1f} us, and {beside:.1f} us in a thread, {n_bytes / 1024:.1f} KiB on disk"
    )


async def shadow_costs(n_requests: int) -> None:
    """Print what a shadow with the default weights costs, beside a decision."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shadow.yaml"
        await asyncio.to_thread(file.write_text, "apiVersion: kvatlas/v1\nkind: KVAtlasConfig\n")
        shadow = Shadow(ShadowConfig(file=str(file), max_cpu=1.0), KVAtlasConfig(api_version="kvatlas/v1"))
        await shadow.look()
        await shadow.look()
    fleet = Fleet(N_ENDPOINTS)
    decisions = [fleet.decide() for _ in range(n_requests)]
    for decision in decisions:
        shadow.routed(REQUEST, decision, Draws(random.random))
    begin = time.thread_time_ns()
    await asyncio.sleep(0)
    taken = (time.thread_time_ns() - begin) / n_requests / 1000
    candidates = decisions[0].candidates
    alone = microseconds(
        lambda _: PROFILE.decide(REQUEST, candidates, rng=random.random), [Prefix(array("I"))] * n_requests
    )
    print(f"shadow             {taken:8.1f} us, {N_ENDPOINTS} endpoints; the decision itself {alone:.1f} us")


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=30_000)
    parser.add_argument("--requests", type=int, default=400)
    arguments = parser.parse_args()
    random.seed(1)
    prefixes = prompts(arguments.requests, arguments.tokens)
    print(f"a request with {arguments.tokens} tokens costs")
    curve_costs(prefixes)
    asyncio.run(recorder_costs(prefixes))
    asyncio.run(shadow_costs(arguments.requests))


if __name__ == "__main__":
    main()
