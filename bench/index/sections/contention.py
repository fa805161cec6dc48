"""Time of a match while another thread stores and removes without a pause."""

from __future__ import annotations

import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rich.progress import Progress

from ..columns import Column
from ..filled import Filled
from ..fleet import EVENT_BLOCKS, HIT, Blocks, make_blocks
from ..indexes import MeasuredIndex
from ..results import Figure, Row, Samples, Section, Target
from ..sizes import Size

_US, _NS = 1e-6, 1e-9
_COLUMNS = (Column.REFERENCE, Column.NATIVE)
"""Our columns alone: events for a RadixTree are written as JSON in Python, so its figure would be that of Python's lock."""

_HOLDER = 3
_QUESTIONS = 50
_PAUSE_S = 0.001


async def measure_contention(filled: Filled, size: Size, progress: Progress) -> Section:
    """Measure latencies alone and with the other thread, in turns."""
    rng = random.Random(4)
    news = [make_blocks(rng, EVENT_BLOCKS) for _ in range(50)]
    idle, busy, stored = Samples(), Samples(), Samples()
    for _ in progress.track(range(size.paced_rounds), description="contention"):
        for column in _COLUMNS:
            index = filled.indexes[column]
            await _ask(filled, column, idle)
            is_done = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                begin = time.perf_counter()
                ingest = pool.submit(_churn_until, is_done, index, news)
                try:
                    await _ask(filled, column, busy)
                finally:
                    is_done.set()
                stored.add(column, (time.perf_counter() - begin) / ingest.result())
    ratio = {
        column: Figure(statistics.median(busy.taken[column]) / statistics.median(idle.taken[column]))
        for column in _COLUMNS
    }
    return Section(
        "contention",
        "Match while another thread stores",
        (
            Row(f"{HIT}, alone", "us", idle.medians(per=_US, with_p99=True)),
            Row(f"{HIT}, meanwhile", "us", busy.medians(per=_US, with_p99=True)),
            Row("medians, meanwhile / alone", "ratio", ratio, Target(2)),
            Row("per block stored or removed meanwhile", "ns", stored.medians(per=_NS)),
        ),
    )


async def _ask(filled: Filled, column: Column, taken: Samples) -> None:
    """Match repeatedly, with a pause in between."""
    prompts = filled.fleet.prompts[HIT]
    for number in range(_QUESTIONS):
        time.sleep(_PAUSE_S)  # noqa: ASYNC251 - nothing else is to run on this thread
        seconds, _ = await filled.indexes[column].timed_match(prompts[number % len(prompts)])
        taken.add(column, seconds)


def _churn_until(is_done: threading.Event, index: MeasuredIndex, news: list[Blocks]) -> int:
    """Store and remove blocks until `is_done`, at least one round; returns how many."""
    n_blocks = 0
    while not (n_blocks and is_done.is_set()):
        for action in (index.store, index.remove):
            for blocks in news:
                action(_HOLDER, blocks)
                n_blocks += len(blocks)
    return n_blocks
