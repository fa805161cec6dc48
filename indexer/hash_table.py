"""Engine hash -> what it means, for one publisher, in the order in which it was learned."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ..events.model import EngineHash
from .keys import BlockKey


class Known(NamedTuple):
    """One learned block: its key, its number in its prompt from 0, and the hash before it (None at number 0)."""

    key: BlockKey
    depth: int
    parent: EngineHash | None


class HashColumns(NamedTuple):
    """Every row of a table, oldest first; `parents` count where the depth is not 0."""

    hashes: array[int]
    keys: array[int]
    depths: array[int]
    parents: array[int]


class HashTable(Protocol):
    """What `HashMap` learns into. Operations cost O(1), those on columns O(rows)."""

    def __len__(self) -> int:
        """Hashes known."""
        ...

    def get(self, engine_hash: EngineHash) -> Known | None:
        """What the hash means, None when it is not known."""
        ...

    def put(self, engine_hash: EngineHash, known: Known) -> None:
        """Learn a hash as the newest; one that is known keeps its place."""
        ...

    def pop_oldest(self) -> tuple[EngineHash, Known]:
        """Forget the oldest hash; the table must not be empty."""
        ...

    def expect(self, engine_hash: EngineHash) -> None:
        """Something waits for this hash: who learns hashes past `HashMap` must leave it alone until it is put."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...

    def columns(self) -> HashColumns:
        """A copy of every row."""
        ...

    def put_columns(self, columns: HashColumns) -> None:
        """`put` for every row."""
        ...


class DictTable:
    """Implements `HashTable` in Python. Nobody learns into it past `HashMap`."""

    def __init__(self) -> None:
        self._known: dict[EngineHash, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, engine_hash: EngineHash) -> Known | None:
        """See `HashTable.get`."""
        return self._known.get(engine_hash)

    def put(self, engine_hash: EngineHash, known: Known) -> None:
        """See `HashTable.put`."""
        self._known[engine_hash] = known

    def pop_oldest(self) -> tuple[EngineHash, Known]:
        """See `HashTable.pop_oldest`."""
        oldest = next(iter(self._known))
        return oldest, self._known.pop(oldest)

    def expect(self, engine_hash: EngineHash) -> None:
        """See `HashTable.expect`."""

    def clear(self) -> None:
        """See `HashTable.clear`."""
        self._known.clear()

    def columns(self) -> HashColumns:
        """See `HashTable.columns`."""
        known = self._known.values()
        return HashColumns(
            hashes=array("Q", self._known),
            keys=array("Q", (each.key for each in known)),
            depths=array("I", (each.depth for each in known)),
            parents=array("Q", (each.parent or 0 for each in known)),
        )

    def put_columns(self, columns: HashColumns) -> None:
        """See `HashTable.put_columns`."""
        for engine_hash, known in rows(columns):
            self.put(engine_hash, known)


def rows(columns: HashColumns) -> Iterator[tuple[EngineHash, Known]]:
    """The rows of `columns`, one by one."""
    for engine_hash, key, depth, parent in zip(*columns, strict=True):
        yield EngineHash(engine_hash), Known(BlockKey(key), depth, EngineHash(parent) if depth else None)
