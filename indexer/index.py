"""The block index contract: which holder has which block key, counted and bounded."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NewType, Protocol

HolderId = NewType("HolderId", int)
"""One place that holds blocks: (endpoint, rank, tier, group). Dense; reused after `close`."""


@dataclass(frozen=True, slots=True)
class PresenceRun:
    """A stretch of prompt blocks with the same holders.

    Attributes:
        end: block after the last of the run.
        holders: bit h set: holder h has every block of the run.
    """

    end: int
    holders: int


class BlockIndex(Protocol):
    """Residencies of one block size. Keys arrive as `array('Q')` in prompt order."""

    def open(self) -> HolderId:
        """A new empty holder without capacity bound. Cost: O(1)."""
        ...

    def close(self, holder: HolderId) -> None:
        """Forget the holder and all it has. Cost: O(its residencies)."""
        ...

    def store(self, holder: HolderId, keys: array[int]) -> int:
        """One more copy of each key, newest last touched; returns residencies evicted to keep the capacity.

        Within one call the first key is the most recent: eviction takes prompts from their tail, as engines do.
        Cost: O(n).
        """
        ...

    def keep(self, holder: HolderId, keys: array[int]) -> int:
        """Hold each key at least once: as `store`, but a key the holder has is only renewed. Cost: O(n)."""
        ...

    def remove(self, holder: HolderId, keys: array[int]) -> int:
        """One copy less of each key; a key without copies is gone. Returns keys the holder did not have. Cost: O(n)."""
        ...

    def clear(self, holder: HolderId) -> None:
        """Drop everything the holder has; its capacity stays."""
        ...

    def touch(self, holder: HolderId, keys: array[int]) -> None:
        """Renew the recency of those `keys` that the holder has, the first key most recent."""
        ...

    def set_capacity(self, holder: HolderId, n_blocks: int | None) -> int:
        """Bound the holder's copies, None for no bound; returns residencies evicted at once."""
        ...

    def has(self, holder: HolderId, key: int) -> bool:
        """Whether the holder has `key`."""
        ...

    def size(self, holder: HolderId) -> int:
        """Keys the holder has."""
        ...

    def runs(self, keys: array[int]) -> list[PresenceRun]:
        """Holders along `keys` up to the first key nobody has, as maximal runs. Cost: O(n)."""
        ...

    def items(self, holder: HolderId) -> Iterator[tuple[int, int]]:
        """(key, copies) of the holder, least recently used first."""
        ...
