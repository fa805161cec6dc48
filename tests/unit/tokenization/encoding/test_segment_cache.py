from __future__ import annotations

import tracemalloc
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from sys import getsizeof

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.tokenization.encoding.segment_cache import ENTRY_BYTES, SegmentCache


def size(segment: str, ids: bytes) -> int:
    return getsizeof(segment) + getsizeof(ids) + ENTRY_BYTES


def test_ids_are_found_when_the_segment_was_put() -> None:
    cache = SegmentCache()
    cache.put([("a", b"1"), ("b", b"2")])
    assert cache.find(["b", "x", "a", "b"]) == [b"2", None, b"1", b"2"]


def test_segment_not_asked_for_the_longest_goes_first_when_the_bound_is_reached() -> None:
    cache = SegmentCache(2 * size("a", b"1"))
    cache.put([("a", b"1"), ("b", b"2")])
    cache.find(["a"])
    cache.put([("c", b"3")])
    assert cache.find(["a", "b", "c"]) == [b"1", None, b"3"]
    assert cache.statistics().evictions == 1


def test_segment_is_left_out_when_it_is_larger_than_the_bound() -> None:
    cache = SegmentCache(size("a", b"1"))
    cache.put([("a", b"1"), ("b" * 1000, b"2")])
    assert cache.find(["a", "b" * 1000]) == [b"1", None]
    assert cache.statistics().evictions == 0


@pytest.mark.parametrize("n_chars", [8, 300, 2000])
def test_memory_stays_near_the_bound_when_many_segments_come(n_chars: int) -> None:
    bound = 4_000_000
    cache = SegmentCache(bound)
    tracemalloc.start()
    try:
        for number in range(3 * bound // (2 * n_chars + 200)):
            cache.put([(f"{number:0{n_chars}d}", bytes(n_chars))])
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cache.statistics().evictions > 0
    assert 0.8 * bound < taken < 1.05 * bound


def test_statistics_are_right_when_several_threads_use_the_cache() -> None:
    cache = SegmentCache(50_000)

    def use(worker: int) -> None:
        for number in range(2000):
            segment = f"{(number * 7 + worker) % 500}"
            ids = cache.find([segment])[0]
            assert ids in (None, segment.encode() * 10)
            cache.put([(segment, segment.encode() * 10)])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(use, range(4)))
    figures = cache.statistics()
    there = [number for number in range(500) if cache.find([str(number)])[0] is not None]
    assert figures.segments == len(there)
    assert figures.size_bytes == sum(size(str(number), str(number).encode() * 10) for number in there)
    assert figures.size_bytes <= 50_000


SEGMENTS = st.text("abc", max_size=3)


class CacheMachine(RuleBasedStateMachine):
    """Comparison with an ordered dictionary that is scanned in full."""

    bound = 700

    def __init__(self) -> None:
        super().__init__()
        self.cache = SegmentCache(self.bound)
        self.model: OrderedDict[str, bytes] = OrderedDict()

    @rule(segment=SEGMENTS, ids=st.binary(max_size=300))
    def put(self, segment: str, ids: bytes) -> None:
        self.cache.put([(segment, ids)])
        if segment not in self.model and size(segment, ids) <= self.bound:
            self.model[segment] = ids
            while sum(size(*entry) for entry in self.model.items()) > self.bound:
                self.model.popitem(last=False)

    @rule(segments=st.lists(SEGMENTS, max_size=4))
    def find(self, segments: list[str]) -> None:
        assert self.cache.find(segments) == [self.model.get(segment) for segment in segments]
        for segment in segments:
            if segment in self.model:
                self.model.move_to_end(segment)

    @invariant()
    def figures_are_those_of_what_is_there(self) -> None:
        figures = self.cache.statistics()
        assert figures.segments == len(self.model)
        assert figures.size_bytes == sum(size(*entry) for entry in self.model.items())


TestCache = CacheMachine.TestCase
