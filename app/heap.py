"""The heap of the C library, from which larger Python objects, messages and libraries allocate."""

from __future__ import annotations

import ctypes
from collections import deque

RETURNED_FROM_BYTES = 16 * 2**20
"""Free memory that is worth returning. Returning takes 0.07 ms per MiB, and its next use a little more."""

FREE_FOR = 3
"""Calls of `Heap.is_idle` for which memory must have been free."""


class _Figures(ctypes.Structure):
    """`struct mallinfo2`: sums over all arenas in bytes."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


class Heap:
    """Returns memory to the system that stays free.

    The heap shrinks by itself only at its end. After a burst of events, messages of hundreds of MiB were freed, but a few
    later allocations keep their memory.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._figures = getattr(library, "mallinfo2", None)
        if self._figures is not None:  # glibc has it from 2.33 on, others shrink differently
            self._figures.restype = _Figures
        self._trim = getattr(library, "malloc_trim", None)
        self._idle = IdleMemory()

    def is_idle(self) -> bool:
        """Return whether memory should be returned now; call it regularly.

        Cost: 0.1 ms, 2 ms if much of the heap is free in small pieces.
        """
        return self._figures is not None and self._idle.is_worth_returning(self._figures().fordblks)

    def shrink(self) -> None:
        """Return free memory. Other threads wait for at most half of it if they allocate from the same arena."""
        if self._trim is not None:
            self._trim(0)


class IdleMemory:
    """Decides from samples of free memory when to return it."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=FREE_FOR)
        self._returned = 0

    def is_worth_returning(self, free_bytes: int) -> bool:
        """Take the free memory of the heap, which includes what was returned; return whether to return it now."""
        self._recent.append(free_bytes)
        self._returned = min(self._returned, free_bytes)  # the rest is in use again
        is_worth = len(self._recent) == FREE_FOR and min(self._recent) - self._returned >= RETURNED_FROM_BYTES
        if is_worth:
            self._returned = free_bytes
        return is_worth
