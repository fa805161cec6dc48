"""The contract of a block index, which every implementation meets."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from kvatlas.indexer.columns import HolderColumns
from kvatlas.indexer.index import BlockIndex, HolderId
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
