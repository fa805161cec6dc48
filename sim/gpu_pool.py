"""The GPU's block pool: reference counts, an LRU queue of free blocks, and hashes of cached blocks."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from ..events.model import EngineHash


class GpuPool:
    """Physical blocks by number. A free block keeps its hash and can be hit until it is reused.

    As in vLLM, block 0 is reserved, so `n_blocks - 1` can be used, and two blocks may have the same hash.

    Args:
        n_blocks: size of the pool, at least 2.
    """

    def __init__(self, n_blocks: int) -> None:
        self._n_blocks = n_blocks
        self._refs: dict[int, int] = {}
        self._hash_of: dict[int, EngineHash] = {}
        self._block_of: dict[EngineHash, int] = {}
        """The first cached block with the hash; others with the same hash are in `_others`, in order."""
        self._others: dict[EngineHash, list[int]] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, n_blocks))

    @property
    def capacity(self) -> int:
        """Blocks that can be used."""
        return self._n_blocks - 1

    @property
    def n_free(self) -> int:
        """Blocks without references, including cached ones."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Blocks with references."""
        return len(self._refs)

    @property
    def references(self) -> int:
        """Sum of all reference counts."""
        return sum(self._refs.values())

    def copies(self) -> Counter[EngineHash]:
        """Count the blocks per cached hash."""
        return Counter(self._hash_of.values())

    def find(self, key: EngineHash) -> int | None:
        """Return the first cached block with this hash; None if there is none."""
        return self._block_of.get(key)

    def is_free(self, block: int) -> bool:
        """Return whether `block` has no references."""
        return block not in self._refs

    def share(self, block: int) -> None:
        """Add a reference; a free block leaves the queue."""
        self._free.pop(block, None)
        self._refs[block] = self._refs.get(block, 0) + 1

    def take(self, n_blocks: int) -> tuple[list[int], list[EngineHash]]:
        """Take the `n_blocks` least recently freed blocks; return them and the hashes evicted with them, in order.

        Each block then has one reference.

        Raises:
            ValueError: fewer blocks are free.
        """
        if n_blocks > self.n_free:
            raise ValueError(f"want {n_blocks} blocks, {self.n_free} are free")
        taken: list[int] = []
        evicted: list[EngineHash] = []
        for _ in range(n_blocks):
            block, _none = self._free.popitem(last=False)
            key = self._hash_of.pop(block, None)
            if key is not None:
                self._forget_copy(key, block)
                evicted.append(key)
            self._refs[block] = 1
            taken.append(block)
        return taken, evicted

    def cache(self, block: int, key: EngineHash) -> None:
        """Set the hash of a referenced block, so that later requests find it."""
        self._hash_of[block] = key
        if self._block_of.setdefault(key, block) != block:
            self._others.setdefault(key, []).append(block)

    def give_back(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; blocks without references become free and are reused in the given order.

        Blocks without a hash can never be hit, so they are reused before all others.
        """
        useless: list[int] = []
        for block in blocks:
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            del self._refs[block]
            self._free[block] = None
            if block not in self._hash_of:
                useless.append(block)
        for block in reversed(useless):
            self._free.move_to_end(block, last=False)

    def forget_hashes(self) -> None:
        """Clear the prefix cache; blocks and references stay."""
        self._hash_of.clear()
        self._block_of.clear()
        self._others.clear()

    def _forget_copy(self, key: EngineHash, block: int) -> None:
        others = self._others.get(key)
        if others is None:
            del self._block_of[key]
            return
        if self._block_of[key] == block:
            self._block_of[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others[key]
