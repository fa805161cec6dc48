"""Learned paths of the native index, read by other threads while they are split, extended and evicted."""

from __future__ import annotations

import random
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor

from kvatlas.indexer.match import PresenceRun
from kvatlas.indexer.native_index import NativeIndex


def test_readers_see_what_a_path_has_in_common_with_others_while_a_writer_thread_learns_more() -> None:
    index = NativeIndex()
    holder, other = index.open(), index.open()
    common = array("Q", range(1, 121))
    index.learn(holder, common + array("Q", range(1000, 1400)))
    is_done = threading.Event()

    def branch(rng: random.Random) -> array[int]:
        begin, n_shared = 10_000 * rng.randrange(1, 50), rng.choice([120, 120, 130, 300])
        shared = array("Q", range(1000, 1000 + n_shared - 120))
        return common + shared + array("Q", range(begin + n_shared, begin + n_shared + rng.randrange(1, 400)))

    def write() -> int:
        rng, n_rounds = random.Random(1), 0
        while not is_done.is_set():
            index.learn(holder, branch(rng))
            index.learn(other, branch(rng)[120:])
            index.set_capacity(other, rng.choice([100, 5000]))
            if n_rounds % 50 == 49:
                index.clear(other)
            n_rounds += 1
        return n_rounds

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(3000):
            found = index.runs(branch(rng))
            assert found[0].end >= len(common)
            assert all(run.holders & 1 << holder for run in found[:1])
            index.has(other, rng.randrange(10_000, 500_000))

    with ThreadPoolExecutor(3) as pool:
        writer = pool.submit(write)
        readers = [pool.submit(read, seed) for seed in range(2)]
        try:
            for reader in readers:
                reader.result()
        finally:
            is_done.set()
        assert writer.result() > 0
    assert index.runs(common) == [PresenceRun(len(common), 1 << holder)]
