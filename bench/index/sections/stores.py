"""CPU time per stored or removed block in the index alone, also if a full tier must evict another."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial

from rich.progress import Progress

from kvatlas.indexer.factory import index_core

from ..columns import Column
from ..filled import Filled
from ..fleet import EVENT_BLOCKS, make_blocks
from ..results import Row, Samples, Section
from ..sizes import Size

_NS = 1e-9
_HOLDERS = 4
_CHURN_BLOCKS = 300
_CAPACITY = 41_000
_BOUNDED = (Column.REFERENCE, Column.NATIVE)
"""Dynamo's indexes have no bound of this kind."""


def measure_stores(filled: Filled, size: Size, progress: Progress) -> Section:
    """Measure the CPU time per block, of all threads.

    Raises:
        SystemExit: a full tier does not end up the same in both of our indexes.
    """
    store, remove = _churn(filled, size, progress)
    evict = _evict(size, progress)
    return Section(
        "stores",
        "Stores and removals, CPU time per block",
        (
            Row(f"store {EVENT_BLOCKS}, the index filling", "ns", filled.stores.medians(per=_NS)),
            Row(f"store {_CHURN_BLOCKS} new ones, the index full", "ns", store.medians(per=_NS)),
            Row(f"remove {_CHURN_BLOCKS}", "ns", remove.medians(per=_NS)),
            Row(f"store {EVENT_BLOCKS} into a full tier (LRU)", "ns", evict.medians(per=_NS)),
        ),
    )


def _churn(filled: Filled, size: Size, progress: Progress) -> tuple[Samples, Samples]:
    """Store new prompts, then remove them."""
    rng = random.Random(3)
    prompts = [make_blocks(rng, _CHURN_BLOCKS) for _ in range(size.churn_rounds)]
    taken = (Samples(), Samples())
    for name, samples in zip(("store", "remove"), taken, strict=True):
        for number, blocks in enumerate(progress.track(prompts, description=f"{name} in a full index")):
            for column, index in filled.indexes.items():
                action = index.store if name == "store" else index.remove
                seconds = _cpu_time(partial(action, number % _HOLDERS, blocks))
                samples.add(column, seconds / len(blocks))
    return taken


def _evict(size: Size, progress: Progress) -> Samples:
    """Store blocks each of which evicts one."""
    rng = random.Random(5)
    indexes = {column: index_core(column).make_index() for column in _BOUNDED}
    holders = {column: index.open() for column, index in indexes.items()}
    capacity = min(_CAPACITY, size.n_evicting * EVENT_BLOCKS // 3)
    for column, index in indexes.items():
        index.set_capacity(holders[column], capacity)
    taken = Samples()
    n_stored = 0
    for _ in progress.track(range(size.n_evicting), description="store into a full tier"):
        keys = make_blocks(rng, EVENT_BLOCKS).keys
        n_stored += len(keys)
        for column, index in indexes.items():
            seconds = _cpu_time(partial(index.store, holders[column], keys))
            if n_stored > capacity + EVENT_BLOCKS:
                taken.add(column, seconds / len(keys))
    contents = [list(index.items(holders[column])) for column, index in indexes.items()]
    if contents[0] != contents[1]:
        raise SystemExit("a full tier: the reference and the native index do not hold the same blocks")
    return taken


def _cpu_time(action: Callable[[], object]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin
