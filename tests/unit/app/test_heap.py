from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvatlas.app.heap import FREE_FOR, RETURNED_FROM_BYTES, Heap, IdleMemory

MUCH, LITTLE = 3 * RETURNED_FROM_BYTES, RETURNED_FROM_BYTES // 2


@pytest.mark.parametrize(
    ("samples", "returned_at"),
    [
        pytest.param([LITTLE] * 9, [], id="little_is_free"),
        pytest.param([MUCH] * 9, [FREE_FOR - 1], id="once_for_what_stays_free"),
        pytest.param([MUCH, MUCH, 0] * 3, [], id="it_is_used_again_and_again"),
        pytest.param([MUCH] * 3 + [MUCH + LITTLE] * 6, [2], id="a_little_more_is_free_later"),
        pytest.param([MUCH] * 3 + [2 * MUCH] * 6, [2, 5], id="much_more_is_free_later"),
        pytest.param([MUCH] * 3 + [LITTLE] + [MUCH] * 6, [2, 6], id="what_was_returned_was_used_between"),
    ],
)
def test_free_memory_is_returned_when_it_stays_free(samples: Sequence[int], returned_at: list[int]) -> None:
    idle = IdleMemory()
    assert [at for at, free in enumerate(samples) if idle.is_worth_returning(free)] == returned_at


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries shrink differently")
def test_memory_between_objects_returns_to_the_system_when_it_stays_free() -> None:
    objects = [bytes(4000) for _ in range(20_000)]
    kept = objects[::100]
    del objects
    before, heap = _resident_pages(), Heap()
    assert [heap.is_idle() for _ in range(FREE_FOR)] == [False, False, True]
    heap.shrink()
    assert _resident_pages() < before - 10_000
    assert len(kept) == 200


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])
