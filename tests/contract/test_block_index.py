"""The block index contract. Every implementation runs this suite, and agrees with a naive one."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.indexer.columns import HolderColumns
from kvatlas.indexer.factory import index_core
from kvatlas.indexer.index import BlockIndex, HolderId, fill
from kvatlas.indexer.match import PresenceRun
from support.cores import CORES

IMPLEMENTATIONS = [pytest.param(core.make_index, id=name) for name, core in CORES.items()]


def keys(*values: int) -> array[int]:
    return array("Q", values)


@pytest.fixture(params=IMPLEMENTATIONS)
def index(request: pytest.FixtureRequest) -> BlockIndex:
    make: Callable[[], BlockIndex] = request.param
    return make()


def test_stored_blocks_are_found_in_runs_with_their_holders(index: BlockIndex) -> None:
    a, b = index.open(), index.open()
    index.store(a, keys(1, 2, 3))
    index.store(b, keys(1, 2))
    both, only_a = (1 << a) | (1 << b), 1 << a
    assert index.runs(keys(1, 2, 3, 4)) == [PresenceRun(2, both), PresenceRun(3, only_a)]


@pytest.mark.parametrize("prompt", [(), (9,), (9, 1, 2)])
def test_runs_are_empty_when_the_first_block_is_nowhere(index: BlockIndex, prompt: tuple[int, ...]) -> None:
    index.store(index.open(), keys(1, 2))
    assert index.runs(keys(*prompt)) == []


def test_runs_end_at_the_first_block_nobody_has(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1, 3))
    assert index.runs(keys(1, 2, 3)) == [PresenceRun(1, 1 << holder)]


def test_block_stays_until_every_copy_is_removed(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1))
    index.store(holder, keys(1))
    assert (index.remove(holder, keys(1)), index.has(holder, 1)) == (0, True)
    assert (index.remove(holder, keys(1)), index.has(holder, 1)) == (0, False)


def test_removal_of_an_unknown_block_is_counted_and_harmless(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1))
    assert index.remove(holder, keys(2, 1, 1)) == 2
    assert index.size(holder) == 0


def test_holders_do_not_touch_each_other(index: BlockIndex) -> None:
    a, b = index.open(), index.open()
    index.store(a, keys(1))
    index.store(b, keys(1))
    index.clear(a)
    assert (index.has(a, 1), index.has(b, 1)) == (False, True)


def test_closed_holder_leaves_nothing_behind_for_the_next(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1))
    index.set_capacity(holder, 1)
    index.close(holder)
    again = index.open()
    index.store(again, keys(2, 3))
    assert (index.has(again, 1), index.size(again)) == (False, 2)
    assert index.runs(keys(1)) == []


def test_eviction_takes_the_tail_of_the_least_recently_stored_prompt(index: BlockIndex) -> None:
    holder = index.open()
    index.set_capacity(holder, 5)
    index.store(holder, keys(1, 2, 3))
    assert index.store(holder, keys(11, 12, 13, 14)) == 2
    assert [index.has(holder, key) for key in (1, 2, 3)] == [True, False, False]


def test_touch_renews_recency_of_held_blocks_only(index: BlockIndex) -> None:
    holder = index.open()
    index.set_capacity(holder, 3)
    index.store(holder, keys(1))
    index.store(holder, keys(2))
    index.store(holder, keys(3))
    index.touch(holder, keys(1, 99))
    index.store(holder, keys(4))
    assert [index.has(holder, key) for key in (1, 2, 3, 4, 99)] == [True, False, True, True, False]


def test_capacity_takes_copies_that_were_only_announced_before_blocks(index: BlockIndex) -> None:
    holder = index.open()
    index.set_capacity(holder, 3)
    index.store(holder, keys(1, 2))
    index.store(holder, keys(1, 2))
    assert index.size(holder) == 2
    index.remove(holder, keys(1))
    assert index.store(holder, keys(3)) == 0


def test_lower_capacity_evicts_at_once(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1, 2, 3))
    assert index.set_capacity(holder, 1) == 2
    assert list(index.items(holder)) == [(1, 1)]


def test_capacity_that_evicts_nothing_leaves_iteration_alone(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, array("Q", range(10_000)))
    items = index.items(holder)
    next(items)
    index.set_capacity(holder, 10_000)
    assert len(list(items)) == 9_999


def test_kept_block_is_renewed_without_another_copy(index: BlockIndex) -> None:
    holder = index.open()
    index.set_capacity(holder, 2)
    index.store(holder, keys(1, 2))
    assert index.keep(holder, keys(2, 2)) == 0
    assert index.keep(holder, keys(3)) == 1
    assert list(index.items(holder)) == [(2, 1), (3, 1)]


def test_repeated_key_of_one_store_is_a_copy(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1, 1))
    assert list(index.items(holder)) == [(1, 2)]


OPERATIONS: dict[str, Callable[[BlockIndex, HolderId], object]] = {
    "close": lambda index, holder: index.close(holder),
    "store": lambda index, holder: index.store(holder, keys(1)),
    "keep": lambda index, holder: index.keep(holder, keys(1)),
    "remove": lambda index, holder: index.remove(holder, keys(1)),
    "clear": lambda index, holder: index.clear(holder),
    "touch": lambda index, holder: index.touch(holder, keys(1)),
    "set_capacity": lambda index, holder: index.set_capacity(holder, 1),
    "has": lambda index, holder: index.has(holder, 1),
    "size": lambda index, holder: index.size(holder),
    "items": lambda index, holder: index.items(holder),
    "contents": lambda index, holder: index.contents(holder),
}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
@pytest.mark.parametrize("holder", [0, 1, -1, 2**70])
def test_holder_that_is_not_open_is_refused(
    index: BlockIndex, operation: Callable[[BlockIndex, HolderId], object], holder: HolderId
) -> None:
    index.close(index.open())
    with pytest.raises(KeyError) as error:
        operation(index, holder)
    assert error.value.args == (holder,)


def test_numbers_of_closed_holders_are_used_again_latest_first(index: BlockIndex) -> None:
    a, b, c = index.open(), index.open(), index.open()
    for holder in (c, a):
        index.close(holder)
    assert [index.open(), index.open(), index.open()] == [a, c, b + 2]


def test_change_during_iteration_is_refused(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, array("Q", range(10_000)))
    items = index.items(holder)
    next(items)
    index.store(holder, keys(10_000))
    with pytest.raises(RuntimeError, match="iteration"):
        list(items)


def test_items_come_least_recently_used_first(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1, 2))
    index.store(holder, keys(3))
    index.store(holder, keys(2))
    assert list(index.items(holder)) == [(1, 1), (3, 1), (2, 2)]


def test_contents_are_keys_and_the_copies_of_repeated_ones_latest_first(index: BlockIndex) -> None:
    holder = index.open()
    index.store(holder, keys(1, 2, 3))
    index.store(holder, keys(3, 3))
    index.store(holder, keys(1))
    assert index.contents(holder) == HolderColumns(keys=keys(1, 3, 2), copies=keys(1, 1, 3, 3, 3))
    assert index.contents(index.open()) == HolderColumns(keys=keys(), copies=keys())


class NaiveIndex:
    """One list of (key, copies) a holder, least recently used first; nothing else."""

    def __init__(self) -> None:
        self.held: dict[HolderId, list[list[int]]] = {}
        self.second_copies: dict[HolderId, list[int]] = {}
        self.capacity: dict[HolderId, int | None] = {}

    def open(self, holder: HolderId) -> None:
        self.held[holder], self.second_copies[holder], self.capacity[holder] = [], [], None

    def move(self, old: HolderId, new: HolderId) -> None:
        self.held[new], self.second_copies[new] = self.held.pop(old), self.second_copies.pop(old)
        self.capacity[new] = self.capacity.pop(old)

    def store(self, holder: HolderId, stored: list[int]) -> None:
        for key in reversed(stored):
            copies = next((copies for k, copies in self.held[holder] if k == key), 0)
            self.held[holder] = [row for row in self.held[holder] if row[0] != key] + [[key, copies + 1]]
            if copies and key not in self.second_copies[holder]:
                self.second_copies[holder].append(key)
        self.shrink(holder)

    def keep(self, holder: HolderId, kept: list[int]) -> None:
        held = [key for key, _ in self.held[holder]]
        for key in reversed(kept):
            if key in held:
                self.touch(holder, [key])
            else:
                self.held[holder].append([key, 1])
        self.shrink(holder)

    def remove(self, holder: HolderId, key: int) -> None:
        for row in self.held[holder]:
            if row[0] == key:
                row[1] -= 1
                if row[1] == 1:
                    self.second_copies[holder].remove(key)
        self.held[holder] = [row for row in self.held[holder] if row[1]]

    def touch(self, holder: HolderId, touched: list[int]) -> None:
        for key in reversed(touched):
            rows = [row for row in self.held[holder] if row[0] == key]
            self.held[holder] = [row for row in self.held[holder] if row[0] != key] + rows

    def shrink(self, holder: HolderId) -> None:
        bound = self.capacity[holder]
        while bound is not None and sum(copies for _, copies in self.held[holder]) > bound:
            if self.second_copies[holder]:
                self.remove(holder, self.second_copies[holder][0])
            else:
                self.held[holder].pop(0)


KEYS = st.lists(st.integers(0, 12), min_size=1, max_size=6, unique=True)
N_HOLDERS = 4
HOLDERS = st.integers(0, N_HOLDERS - 1).map(HolderId)
ANY_KEYS = st.lists(st.integers(0, 8) | st.sampled_from([2**63, 2**64 - 1]), max_size=12)


class IndexAgainstNaive(RuleBasedStateMachine):
    """Every operation on the index and on the naive one; they must agree in content, copies and order."""

    core = index_core("reference")

    def __init__(self) -> None:
        super().__init__()
        self.index: BlockIndex = self.core.make_index()
        self.naive = NaiveIndex()
        self.opened: list[HolderId] = []
        for _ in range(3):
            self.add_holder()

    def add_holder(self) -> None:
        holder = self.index.open()
        self.naive.open(holder)
        self.opened.append(holder)

    def pick(self, number: int) -> HolderId:
        return self.opened[number % len(self.opened)]

    @rule(number=st.integers(0, 2), stored=KEYS)
    def store(self, number: int, stored: list[int]) -> None:
        self.index.store(self.pick(number), keys(*stored))
        self.naive.store(self.pick(number), stored)

    @rule(number=st.integers(0, 2), kept=KEYS)
    def keep(self, number: int, kept: list[int]) -> None:
        self.index.keep(self.pick(number), keys(*kept))
        self.naive.keep(self.pick(number), kept)

    @rule(number=st.integers(0, 2), removed=KEYS)
    def remove(self, number: int, removed: list[int]) -> None:
        holder = self.pick(number)
        unknown = sum(key not in [k for k, _ in self.naive.held[holder]] for key in removed)
        assert self.index.remove(holder, keys(*removed)) == unknown
        for key in removed:
            self.naive.remove(holder, key)

    @rule(number=st.integers(0, 2), touched=KEYS)
    def touch(self, number: int, touched: list[int]) -> None:
        self.index.touch(self.pick(number), keys(*touched))
        self.naive.touch(self.pick(number), touched)

    @rule(number=st.integers(0, 2), bound=st.none() | st.integers(1, 8))
    def set_capacity(self, number: int, bound: int | None) -> None:
        self.index.set_capacity(self.pick(number), bound)
        self.naive.capacity[self.pick(number)] = bound
        self.naive.shrink(self.pick(number))

    @rule(number=st.integers(0, 2))
    def clear(self, number: int) -> None:
        holder = self.pick(number)
        self.index.clear(holder)
        self.naive.held[holder], self.naive.second_copies[holder] = [], []

    @rule(number=st.integers(0, 2))
    def reopen(self, number: int) -> None:
        holder = self.opened.pop(number % len(self.opened))
        self.index.close(holder)
        self.add_holder()

    @rule(number=st.integers(0, 2))
    def refill(self, number: int) -> None:
        """A holder that is filled from what another told goes on as that one would have."""
        old = self.opened.pop(number % len(self.opened))
        contents = self.index.contents(old)
        self.index.close(old)
        new = self.index.open()
        fill(self.index, new, contents)
        self.index.set_capacity(new, self.naive.capacity[old])
        self.naive.move(old, new)
        self.opened.append(new)

    @rule(prompt=KEYS)
    def match(self, prompt: list[int]) -> None:
        start = 0
        for run in self.index.runs(keys(*prompt)):
            for key in prompt[start : run.end]:
                assert run.holders == self.holders_of(key) != 0
            start = run.end
        assert start == len(prompt) or self.holders_of(prompt[start]) == 0

    def holders_of(self, key: int) -> int:
        return sum(1 << h for h in self.opened if any(k == key for k, _ in self.naive.held[h]))

    @invariant()
    def agree(self) -> None:
        for holder in self.opened:
            assert list(self.index.items(holder)) == [tuple(row) for row in self.naive.held[holder]]
            assert self.index.size(holder) == len(self.naive.held[holder])


class NativeAgainstNaive(IndexAgainstNaive):
    """The same for the native core, where it was built."""

    core = index_core()


class NativeAgainstReference(RuleBasedStateMachine):
    """Every operation on both implementations, answer by answer, also with holders opened and closed at will."""

    def __init__(self) -> None:
        super().__init__()
        self.indexes: list[BlockIndex] = [index_core("reference").make_index(), index_core().make_index()]

    def both(self, operation: Callable[[BlockIndex], object]) -> None:
        answers: list[object] = []
        for index in self.indexes:
            try:
                answers.append(operation(index))
            except KeyError as error:
                answers.append(error.args)
        assert answers[0] == answers[1]

    @rule()
    def open(self) -> None:
        self.both(lambda index: index.open())

    @rule(holder=HOLDERS)
    def close(self, holder: HolderId) -> None:
        self.both(lambda index: index.close(holder))

    @rule(holder=HOLDERS, stored=ANY_KEYS)
    def store(self, holder: HolderId, stored: list[int]) -> None:
        self.both(lambda index: index.store(holder, keys(*stored)))

    @rule(holder=HOLDERS, kept=ANY_KEYS)
    def keep(self, holder: HolderId, kept: list[int]) -> None:
        self.both(lambda index: index.keep(holder, keys(*kept)))

    @rule(holder=HOLDERS, removed=ANY_KEYS)
    def remove(self, holder: HolderId, removed: list[int]) -> None:
        self.both(lambda index: index.remove(holder, keys(*removed)))

    @rule(holder=HOLDERS, touched=ANY_KEYS)
    def touch(self, holder: HolderId, touched: list[int]) -> None:
        self.both(lambda index: index.touch(holder, keys(*touched)))

    @rule(holder=HOLDERS)
    def clear(self, holder: HolderId) -> None:
        self.both(lambda index: index.clear(holder))

    @rule(holder=HOLDERS, bound=st.none() | st.integers(0, 12))
    def set_capacity(self, holder: HolderId, bound: int | None) -> None:
        self.both(lambda index: index.set_capacity(holder, bound))

    @rule(holder=HOLDERS, key=st.integers(-1, 2**64))
    def has(self, holder: HolderId, key: int) -> None:
        self.both(lambda index: index.has(holder, key))

    @rule(prompt=ANY_KEYS)
    def match(self, prompt: list[int]) -> None:
        self.both(lambda index: index.runs(keys(*prompt)))

    @invariant()
    def agree(self) -> None:
        for holder in map(HolderId, range(N_HOLDERS)):
            self.agree_on(holder)

    def agree_on(self, holder: HolderId) -> None:
        self.both(lambda index: list(index.items(holder)))
        self.both(lambda index: index.size(holder))


for machine in (IndexAgainstNaive, NativeAgainstNaive, NativeAgainstReference):
    machine.TestCase.settings = settings(stateful_step_count=30)
TestReferenceAgainstNaive = IndexAgainstNaive.TestCase
TestNativeAgainstNaive = NativeAgainstNaive.TestCase
TestNativeAgainstReference = NativeAgainstReference.TestCase
