"""The table of one publisher's engine hashes and their blocks, in the order in which they were learned."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ..events.model import EngineHash
from .hash_keys import hash_column, hash_key, hash_of
from .keys import BlockKey


class Known(NamedTuple):
    """One learned block: its key, its number in its prompt from 0, and the hash before it (None at number 0)."""

    key: BlockKey
    depth: int
    parent: EngineHash | None


class HashColumns(NamedTuple):
    """All rows of a table, oldest first; `parents` are valid if the depth is not 0."""

    hashes: array[int]
    keys: array[int]
    depths: array[int]
    parents: array[int]


class HashTable(Protocol):
    """The table behind a `HashMap`. Operations cost O(1), those on columns O(rows)."""

    def __len__(self) -> int:
        """Return the number of hashes."""
        ...

    def get(self, engine_hash: EngineHash) -> Known | None:
        """Return the block of a hash, None if it is unknown."""
        ...

    def chain(self, engine_hash: EngineHash, n_blocks: int) -> list[BlockKey]:
        """Return the keys of the block of a hash and of up to `n_blocks` - 1 before it, as far as known, in prompt order."""
        ...

    def put(self, engine_hash: EngineHash, known: Known) -> None:
        """Add a hash as the newest; a known one keeps its position."""
        ...

    def pop_oldest(self) -> tuple[EngineHash, Known]:
        """Remove and return the oldest hash; the table must not be empty."""
        ...

    def expect(self, engine_hash: EngineHash) -> None:
        """Reserve a hash for which something waits: only `put` may add it, no other learner."""
        ...

    def clear(self) -> None:
        """Remove all rows."""
        ...

    def columns(self) -> HashColumns:
        """Return a copy of all rows."""
        ...

    def put_columns(self, columns: HashColumns) -> None:
        """Add all rows."""
        ...


class DictTable:
    """A dict. Implements `HashTable`; only `HashMap` learns into it."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, engine_hash: EngineHash) -> Known | None:
        """See `HashTable.get`."""
        return self._known.get(hash_key(engine_hash))

    def chain(self, engine_hash: EngineHash, n_blocks: int) -> list[BlockKey]:
        """See `HashTable.chain`."""
        keys: list[BlockKey] = []
        known = self.get(engine_hash)
        while known is not None and len(keys) < n_blocks:
            keys.append(known.key)
            known = None if known.parent is None else self.get(known.parent)
        return keys[::-1]

    def put(self, engine_hash: EngineHash, known: Known) -> None:
        """See `HashTable.put`."""
        self._known[hash_key(engine_hash)] = known

    def pop_oldest(self) -> tuple[EngineHash, Known]:
        """See `HashTable.pop_oldest`."""
        oldest = next(iter(self._known))
        return hash_of(oldest), self._known.pop(oldest)

    def expect(self, engine_hash: EngineHash) -> None:
        """See `HashTable.expect`."""

    def clear(self) -> None:
        """See `HashTable.clear`."""
        self._known.clear()

    def columns(self) -> HashColumns:
        """See `HashTable.columns`."""
        known = self._known.values()
        return HashColumns(
            hashes=hash_column(self._known),
            keys=array("Q", (each.key for each in known)),
            depths=array("I", (each.depth for each in known)),
            parents=array("Q", (each.parent or 0 for each in known)),
        )

    def put_columns(self, columns: HashColumns) -> None:
        """See `HashTable.put_columns`."""
        for engine_hash, known in rows(columns):
            self.put(engine_hash, known)


def rows(columns: HashColumns) -> Iterator[tuple[EngineHash, Known]]:
    """Yield the rows of `columns`."""
    for engine_hash, key, depth, parent in zip(*columns, strict=True):
        yield EngineHash(engine_hash), Known(BlockKey(key), depth, EngineHash(parent) if depth else None)
