"""Property tests of the block index: implementations agree with a naive one and with each other."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvatlas.indexer.factory import index_core
from kvatlas.indexer.index import BlockIndex, HolderId, fill


def keys(*values: int) -> array[int]:
    return array("Q", values)


class NaiveIndex:
    """A naive index: one list of (key, copies) per holder, least recently used first."""

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


def path(steps: list[int]) -> list[int]:
    """Return keys of which each stands for all before it."""
    found = [1]
    for step in steps:
        found.append(3 * found[-1] + step)
    return [key + 100 for key in found]


PATHS = st.lists(st.sampled_from([0, 0, 0, 0, 0, 1, 2]), min_size=1, max_size=30).map(path)
"""Paths that often share a part, and are long enough for ends that an index keeps as they came."""


class IndexAgainstNaive(RuleBasedStateMachine):
    """An index and a naive one under the same operations; they agree in content, copies and order."""

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

    @rule(number=st.integers(0, 2), learned=PATHS)
    def learn(self, number: int, learned: list[int]) -> None:
        self.index.learn(self.pick(number), keys(*learned))
        self.naive.keep(self.pick(number), learned)

    @rule(number=st.integers(0, 2), removed=KEYS)
    def remove(self, number: int, removed: list[int]) -> None:
        holder = self.pick(number)
        unknown = sum(key not in [k for k, _ in self.naive.held[holder]] for key in removed)
        assert self.index.remove(holder, keys(*removed)) == unknown
        for key in removed:
            self.naive.remove(holder, key)

    @rule(number=st.integers(0, 2), touched=KEYS | PATHS)
    def touch(self, number: int, touched: list[int]) -> None:
        self.index.touch(self.pick(number), keys(*touched))
        self.naive.touch(self.pick(number), touched)

    @rule(number=st.integers(0, 2), bound=st.none() | st.integers(1, 40))
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
        """Replace a holder by one filled from its contents; both behave alike."""
        old = self.opened.pop(number % len(self.opened))
        contents = self.index.contents(old)
        self.index.close(old)
        new = self.index.open()
        fill(self.index, new, contents)
        self.index.set_capacity(new, self.naive.capacity[old])
        self.naive.move(old, new)
        self.opened.append(new)

    @rule(prompt=KEYS | PATHS)
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
    """The native core beside the naive index, if it was built."""

    core = index_core()


class NativeAgainstReference(RuleBasedStateMachine):
    """Both implementations under the same operations; every result agrees, also for holders that are not open."""

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

    @rule(holder=HOLDERS, kept=ANY_KEYS | PATHS)
    def keep(self, holder: HolderId, kept: list[int]) -> None:
        self.both(lambda index: index.keep(holder, keys(*kept)))

    @rule(holder=HOLDERS, learned=PATHS)
    def learn(self, holder: HolderId, learned: list[int]) -> None:
        self.both(lambda index: index.learn(holder, keys(*learned)))

    @rule(holder=HOLDERS, removed=ANY_KEYS | PATHS)
    def remove(self, holder: HolderId, removed: list[int]) -> None:
        self.both(lambda index: index.remove(holder, keys(*removed)))

    @rule(holder=HOLDERS, touched=ANY_KEYS | PATHS)
    def touch(self, holder: HolderId, touched: list[int]) -> None:
        self.both(lambda index: index.touch(holder, keys(*touched)))

    @rule(holder=HOLDERS)
    def clear(self, holder: HolderId) -> None:
        self.both(lambda index: index.clear(holder))

    @rule(holder=HOLDERS, bound=st.none() | st.integers(0, 40))
    def set_capacity(self, holder: HolderId, bound: int | None) -> None:
        self.both(lambda index: index.set_capacity(holder, bound))

    @rule(holder=HOLDERS, key=st.integers(-1, 2**64) | PATHS.map(lambda found: found[-1]))
    def has(self, holder: HolderId, key: int) -> None:
        self.both(lambda index: index.has(holder, key))

    @rule(prompt=ANY_KEYS | PATHS)
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
