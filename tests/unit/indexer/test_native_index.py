"""The native index at sizes beyond the contract suite: growth, sweeping, merging, threads, malformed input."""

from __future__ import annotations

import random
import threading
from array import array
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvatlas.indexer.index import BlockIndex, HolderId
from kvatlas.indexer.match import PresenceRun
from kvatlas.indexer.reference import ReferenceIndex

if TYPE_CHECKING:
    from kvatlas.indexer._native import Layouts
    from kvatlas.indexer.native_index import NativeIndex
else:
    Layouts = pytest.importorskip(
        "kvatlas.indexer._native", reason="the native core was not built: install g++, and run make again"
    ).Layouts
    NativeIndex = pytest.importorskip("kvatlas.indexer.native_index").NativeIndex

FIGURES = np.zeros((7, 2), np.int32)
"""Of one tier and two rows."""
READ_ONLY = FIGURES.copy()
READ_ONLY.flags.writeable = False

MANY = 20_000  # more keys than a holder may have to be closed on the spot


def keys(*values: int) -> array[int]:
    return array("Q", values)


PLACE = keys(0, 0, 1, 0)
"""Of a rank in row 0, without others."""

ONE_TIER, TWO_TIERS = keys(1, 0, 0, 1, 0, 1, 0), keys(1, 0, 0, 2, 0, 1, 0, 1, 1)
"""Packed layouts."""


def key_range(begin: int, end: int) -> array[int]:
    return array("Q", range(begin, end))


class Pair:
    """Both implementations under the same operations, with equal results."""

    def __init__(self) -> None:
        self.reference: BlockIndex = ReferenceIndex()
        self.native = NativeIndex()

    def do(self, method: str, *arguments: object) -> Any:
        expected, found = (getattr(index, method)(*arguments) for index in (self.reference, self.native))
        if method == "items":
            expected, found = list(expected), list(found)
        assert found == expected
        return found

    def agree(self, prompt: array[int]) -> None:
        self.do("runs", prompt)
        for holder in range(8):
            self.do("size", holder)
            self.do("items", holder)
            self.do("contents", holder)


def some_keys(rng: random.Random, n_prompts: int, length: int) -> array[int]:
    """Draw a stretch of one of several prompts whose keys are spread over all 64 bits."""
    prompt, begin = rng.randrange(n_prompts), rng.randrange(length)
    n_keys = rng.choice([1, 3, 50, 300, 600])
    return array("Q", [(prompt << 20 | b) * 0x9E3779B97F4A7C15 % 2**64 for b in range(begin, begin + n_keys)])


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_the_reference_over_growth_eviction_and_removal(seed: int) -> None:
    rng, pair = random.Random(seed), Pair()
    holders = [pair.do("open") for _ in range(8)]
    for step in range(300):
        holder, some = rng.choice(holders), some_keys(rng, 12, 2000)
        match rng.choices(range(6), weights=[10, 5, 3, 1, 0.3, 3])[0]:
            case 0:
                pair.do("store", holder, some)
            case 1:
                pair.do("remove", holder, some)
            case 2:
                pair.do("touch", holder, some)
            case 3:
                bound = rng.choice([None, 200, 3000, 9000])
                pair.do("set_capacity", holder, bound)
            case 4:
                pair.do("clear", holder)
            case _:
                pair.do("keep", holder, some)
        if step % 50 == 49:
            pair.agree(some)
    for holder in holders[:4]:
        pair.do("set_capacity", holder, 5)
    for prompt in range(12):
        pair.agree(array("Q", [(prompt << 20 | b) * 0x9E3779B97F4A7C15 % 2**64 for b in range(2600)]))


def path_keys(rng: random.Random) -> array[int]:
    """Draw the beginning of one of several branches of several prompts, with keys that stand for all before them."""
    prompt, branch, forks_at = rng.randrange(4), rng.randrange(6), rng.choice([0, 7, 100, 500])
    n_keys = rng.choice([1, 9, 60, 300, 800])
    blocks = [(prompt, b, (branch, forks_at) if b >= forks_at else None) for b in range(n_keys)]
    return array("Q", [hash(block) % 2**64 for block in blocks])


@pytest.mark.parametrize("seed", range(4))
def test_learned_paths_agree_with_the_reference_whatever_else_is_done(seed: int) -> None:
    rng, pair = random.Random(seed), Pair()
    holders = [pair.do("open") for _ in range(8)]
    for step in range(300):
        holder, path = rng.choice(holders[:4]), path_keys(rng)
        match rng.choices(range(8), weights=[20, 5, 1, 1, 1, 1, 0.3, 0.2])[0]:
            case 0:
                pair.do("learn", holder, path)
            case 1:
                pair.do("runs", path)
            case 2:
                pair.do("touch", holder, path)
            case 3:
                pair.do("remove", holder, path[rng.randrange(len(path)) :])
            case 4:
                pair.do("set_capacity", holder, rng.choice([None, 50, 700, 2000]))
            case 5:
                pair.do("keep", holder, path[rng.randrange(len(path)) :])
            case 6:
                pair.do("store", holder, path)
            case _:
                pair.do("clear", holder)
        pair.do("size", holder)
        pair.do("has", holder, path[-1])
        if step % 25 == 24:
            pair.agree(path)


def test_order_survives_merging_of_sparse_chunks() -> None:
    pair, rng = Pair(), random.Random(1)
    holder = pair.do("open")
    pair.do("store", holder, key_range(0, 30_000))
    order = list(range(30_000))
    rng.shuffle(order)
    pair.do("touch", holder, array("Q", order[:12_000]))
    pair.do("remove", holder, array("Q", order[9_000:26_000]))
    pair.do("items", holder)
    pair.do("set_capacity", holder, 100)
    pair.do("items", holder)


@pytest.mark.parametrize("forget", ["close", "clear"])
def test_large_holder_is_gone_at_once_and_swept_later(forget: str) -> None:
    index = NativeIndex()
    stays, goes = index.open(), index.open()
    index.store(stays, key_range(0, 10))
    index.store(goes, key_range(0, MANY))
    getattr(index, forget)(goes)
    assert index.stats().unswept == MANY
    assert index.runs(key_range(0, 20)) == [PresenceRun(10, 1 << stays)]
    again = index.open() if forget == "close" else goes
    assert (again, index.size(again), index.has(again, 5)) == (goes, 0, False)
    index.store(again, key_range(5, 12))
    both = 1 << stays | 1 << again
    wanted = [PresenceRun(5, 1 << stays), PresenceRun(10, both), PresenceRun(12, 1 << again)]
    assert index.runs(key_range(0, 20)) == wanted
    while index.sweep(1000):
        pass
    assert index.runs(key_range(0, 20)) == wanted
    assert (index.stats().keys, index.stats().residencies, index.stats().unswept) == (12, 17, 0)


def test_following_operations_sweep_what_was_closed() -> None:
    index = NativeIndex()
    goes, stays = index.open(), index.open()
    index.store(goes, key_range(0, MANY))
    index.close(goes)
    for key in range(MANY // 256 + 1):
        index.store(stays, keys(key))
    assert index.stats().unswept == 0


def test_capacity_outlives_clear_of_a_large_holder() -> None:
    index = NativeIndex()
    holder = index.open()
    index.store(holder, key_range(0, MANY))
    index.set_capacity(holder, MANY)
    index.clear(holder)
    assert index.store(holder, key_range(0, MANY + 7)) == 7


def test_thousands_of_holders_are_told_apart() -> None:
    index = NativeIndex()
    holders = [index.open() for _ in range(3000)]
    for holder in holders:
        index.store(holder, keys(1, holder + 10))
    assert index.runs(keys(1)) == [PresenceRun(1, (1 << 3000) - 1)]
    assert index.runs(keys(2999 + 10)) == [PresenceRun(1, 1 << 2999)]
    for holder in holders[:-1]:
        index.close(holder)
    assert index.runs(keys(1)) == [PresenceRun(1, 1 << 2999)]


def test_memory_is_given_back_when_keys_are_removed() -> None:
    index = NativeIndex()
    holder = index.open()
    empty = index.stats().size_bytes
    index.store(holder, key_range(0, 200_000))
    full = index.stats().size_bytes
    index.remove(holder, key_range(0, 200_000))
    for key in range(1000):
        index.store(holder, keys(key))
        index.remove(holder, keys(key))
    assert full < 60 * 200_000  # tables may be growing
    assert index.stats().size_bytes < empty + full / 4


def test_readers_see_whole_stores_while_a_writer_works() -> None:
    index = NativeIndex()
    stays, comes = index.open(), index.open()
    prompt = key_range(0, 200)  # fits one step of the writer
    index.store(stays, prompt[:100])
    without = [PresenceRun(100, 1 << stays)]
    with_it = [PresenceRun(100, 1 << stays | 1 << comes), PresenceRun(200, 1 << comes)]
    is_done = threading.Event()

    def write() -> int:
        n_rounds = 0
        while not is_done.is_set():
            index.store(comes, prompt)
            other = index.open()
            index.store(other, key_range(1000, 1000 + (n_rounds % 7 + 1) * 5000))
            index.remove(comes, prompt)
            index.close(other)
            n_rounds += 1
        return n_rounds

    def read() -> set[bool]:
        seen = [index.runs(prompt) for _ in range(3000)]
        assert all(runs in (without, with_it) for runs in seen)
        assert index.has(stays, 5)
        return {runs == with_it for runs in seen}

    with ThreadPoolExecutor(3) as pool:
        writer = pool.submit(write)
        readers = [pool.submit(read) for _ in range(2)]
        try:
            for reader in readers:
                reader.result()
        finally:
            is_done.set()
        assert writer.result() > 0
    assert index.runs(prompt) == without


def test_writers_of_different_threads_do_not_lose_blocks() -> None:
    index = NativeIndex()

    def fill(number: int) -> HolderId:
        holder = index.open()
        for begin in range(0, 20_000, 500):
            index.store(holder, key_range(begin, begin + 500))
            index.touch(holder, key_range(0, 100))
        index.remove(holder, key_range(number, 10_000))
        return holder

    with ThreadPoolExecutor(4) as pool:
        holders = list(pool.map(fill, range(4)))
    assert [index.size(holder) for holder in holders] == [10_000, 10_001, 10_002, 10_003]
    assert index.runs(keys(15_000)) == [PresenceRun(1, 0b1111)]


@pytest.mark.parametrize(
    ("method", "arguments", "error"),
    [
        pytest.param("store", (0,), TypeError, id="too_few"),
        pytest.param("store", (0, b"", 1), TypeError, id="too_many"),
        pytest.param("store", ("0", b""), TypeError, id="holder_text"),
        pytest.param("store", (0, [1]), TypeError, id="list"),
        pytest.param("store", (0, array("I", [1])), TypeError, id="tokens_for_keys"),
        pytest.param("remove", (0, array("d", [1])), TypeError, id="floats"),
        pytest.param("touch", (0, b"1234567"), ValueError, id="part_of_a_key"),
        pytest.param("store", (0, memoryview(bytes(64))[::8]), BufferError, id="not_contiguous"),
        pytest.param("set_capacity", (0, -1), ValueError, id="negative_capacity"),
        pytest.param("set_capacity", (0, 2**64), ValueError, id="absurd_capacity"),
        pytest.param("set_capacity", (0, 1.5), TypeError, id="float_capacity"),
        pytest.param("has", (0, "key"), TypeError, id="key_text"),
        pytest.param("sweep", (-1,), ValueError, id="negative_sweep"),
        pytest.param("run_rows", (None,), TypeError, id="no_keys"),
        pytest.param("match_into", (b"", None, 1, 1, FIGURES), TypeError, id="no_layouts"),
        pytest.param("match_into", (b"", Layouts([], b""), -1, 1, FIGURES), ValueError, id="negative_tokens"),
        pytest.param("match_into", (b"", Layouts([], b""), 1, 0, FIGURES), ValueError, id="block_size"),
        pytest.param("match_into", (b"", Layouts([], b""), 1, 1, FIGURES[0]), TypeError, id="one_line"),
        pytest.param("match_into", (b"", Layouts([], b""), 1, 1, FIGURES[:5]), TypeError, id="no_tier"),
        pytest.param(
            "match_into", (b"", Layouts([], b""), 1, 1, FIGURES.astype("f")), TypeError, id="floats"
        ),
        pytest.param("match_into", (b"", Layouts([], b""), 1, 1, FIGURES.T), ValueError, id="wrong_order"),
        pytest.param("match_into", (b"", Layouts([], b""), 1, 1, bytes(28)), TypeError, id="bytes"),
        pytest.param("match_into", (b"", Layouts([], b""), 1, 1, READ_ONLY), ValueError, id="read_only"),
        pytest.param(
            "match_into",
            (b"", Layouts([ONE_TIER], keys(2, 0, 1, 0)), 1, 1, FIGURES),
            ValueError,
            id="few_rows",
        ),
        pytest.param(
            "match_into", (b"", Layouts([TWO_TIERS], PLACE), 1, 1, FIGURES), ValueError, id="few_tiers"
        ),
        pytest.param("page", (0, 0, None), ValueError, id="empty_page"),
        pytest.param("page", (0, 1, 5), TypeError, id="cursor_number"),
        pytest.param("page", (0, 1, (1, 2**32)), ValueError, id="cursor_beyond"),
        pytest.param("page", (0, 1, (1, 7)), RuntimeError, id="cursor_of_no_row"),
        pytest.param("page", (0, 1, (2, 2**31)), RuntimeError, id="cursor_of_no_chunk"),
    ],
)
def test_malformed_arguments_raise(
    method: str, arguments: tuple[object, ...], error: type[Exception]
) -> None:
    index = NativeIndex()
    index.store(index.open(), keys(1))
    with pytest.raises(error):
        getattr(index, method)(*arguments)
    assert list(index.items(HolderId(0))) == [(1, 1)]


MALFORMED_RANKS: dict[str, tuple[Any, Any, type[Exception]]] = {
    "number": (5, PLACE, TypeError),
    "rank_number": ([5], PLACE, TypeError),
    "part_of_a_number": ([b"1234567"], PLACE, ValueError),
    "empty": ([keys()], PLACE, ValueError),
    "no_tiers": ([keys(1, 0, 0, 0, 0)], PLACE, ValueError),
    "chunk_of_nothing": ([keys(0, 0, 0, 1, 0, 1, 0)], PLACE, ValueError),
    "ends_early": ([keys(1, 0, 0, 1, 1, 1, 0)], PLACE, ValueError),
    "many_holders": ([keys(1, 0, 0, 1, 0, 2**63, 0)], PLACE, ValueError),
    "huge_holder": ([keys(1, 0, 0, 1, 0, 1, 2**32 - 1)], PLACE, ValueError),
    "absurd_drop": ([keys(1, 2**31, 0, 1, 0, 1, 0)], PLACE, ValueError),
    "no_truth_of_tree": ([keys(1, 0, 2, 1, 0, 1, 0)], PLACE, ValueError),
    "rest": ([keys(1, 0, 0, 1, 0, 1, 0, 7)], PLACE, ValueError),
    "no_place": ([ONE_TIER], keys(), ValueError),
    "short_place": ([ONE_TIER], keys(0, 0, 1), ValueError),
    "second_place": ([ONE_TIER], PLACE + PLACE, ValueError),
    "huge_row": ([ONE_TIER], keys(2**31, 0, 1, 0), ValueError),
    "huge_number": ([ONE_TIER], keys(0, 2**31, 1, 0), ValueError),
    "no_truth": ([ONE_TIER], keys(0, 0, 2, 0), ValueError),
}


@pytest.mark.parametrize(("packed", "places", "error"), MALFORMED_RANKS.values(), ids=MALFORMED_RANKS)
def test_malformed_layouts_raise(packed: Any, places: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Layouts(packed, places)


def test_arguments_may_be_named() -> None:
    index = NativeIndex()
    holder = index.open()
    index.store(holder, keys=keys(1))
    index.keep(keys=keys(2), holder=holder)
    assert (index.has(key=1, holder=holder), index.size(holder=holder)) == (True, 2)


@pytest.mark.parametrize("named", [{"key": 1}, {"hold": 0}, {"holder": 0, "keys": b"", "n": 1}])
def test_names_of_no_argument_raise(named: dict[str, object]) -> None:
    size: Any = NativeIndex().size
    with pytest.raises(TypeError):
        size(**named)


def test_argument_given_twice_raises() -> None:
    store: Any = NativeIndex().store
    with pytest.raises(TypeError, match="'holder'"):
        store(0, holder=0)


def test_index_and_layouts_take_no_other_arguments() -> None:
    make: Any = NativeIndex
    with pytest.raises(TypeError):
        make(1)
    make = Layouts
    with pytest.raises(TypeError):
        make([], places=b"")
