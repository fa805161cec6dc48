"""Time to make the block keys of a prompt."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from rich.progress import Progress

from kvatlas.indexer.factory import index_core
from kvatlas.indexer.keys import chain_keys

from .. import dynamo
from ..columns import Column
from ..fleet import BLOCK_SIZE, LONG, SEED, make_blocks
from ..results import Row, Samples, Section
from ..sizes import Size

_US = 1e-6


def measure_keys(columns: Sequence[Column], size: Size, progress: Progress) -> Section:
    """Make the keys of 30,000 tokens.

    Raises:
        SystemExit: they differ.
    """
    tokens = make_blocks(random.Random(6), LONG).tokens
    as_list = tokens.tolist()
    hashing: dict[Column, Callable[[], Sequence[int]]] = {
        column: partial(index_core(column).prefix_keys, tokens, BLOCK_SIZE, seed=SEED)
        for column in (Column.REFERENCE, Column.NATIVE)
    }
    keys = {column: list(make()) for column, make in hashing.items()}
    if Column.RADIX_TREE in columns:
        hashing[Column.RADIX_TREE] = partial(dynamo.local_hashes, as_list)
        keys[Column.RADIX_TREE] = list(chain_keys(dynamo.local_hashes(as_list), seed=SEED))
    for column, own in keys.items():
        if own != keys[Column.REFERENCE]:
            raise SystemExit(f"keys: {column} makes others than the reference")
    taken = Samples()
    for _ in progress.track(range(size.match_rounds), description="keys"):
        for column, make in hashing.items():
            begin = time.perf_counter()
            make()
            taken.add(column, time.perf_counter() - begin)
    row = Row(f"{len(tokens):,} tokens in blocks of {BLOCK_SIZE}", "us", taken.medians(per=_US))
    return Section("keys", "Block keys of a prompt", (row,))
