"""A paged KV cache with vLLM's rules: a GPU pool with prefix caching, a write-through CPU tier, and a storage tier.

Steps of a sequence:
1. `fetch` reads chunks that only storage has into the CPU tier.
2. `admit` takes references to cached blocks, and blocks to load into if the CPU tier has more.
3. `complete_load` is called when that copy is done.
4. `extend` is called for each run of computed tokens, and `offload` after each extension.
5. `release` ends it.
Each call returns the events that it caused, in the order of a real server: an eviction before the store that caused it.
There is no clock and no I/O.

Source: observed on vLLM 0.32; tests replay its recording block for block.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from ..events.model import EngineHash
from .cache_events import CacheEvents
from .cpu_tier import Chunk, CpuTier
from .gpu_pool import GpuPool
from .kv_events import CPU, STORAGE, AllBlocksCleared, Event
from .sequence import BlockSequence
from .storage_tier import StorageTier


class Wait(Enum):
    """Reason why a sequence cannot be admitted yet."""

    NO_ROOM = "capacity"
    DEFERRED = "deferred"
    """A chunk to load is still being written, or is being loaded for another sequence."""


@dataclass(frozen=True, slots=True)
class Hit:
    """The cached part of a sequence.

    Attributes:
        gpu_blocks: leading blocks on the GPU that can be reused.
        cpu_tokens: tokens after them that can be loaded.
        remote_tokens: tokens after them that another server sends.
        deferred: whether to look up again later, because a chunk of that run is being copied.
    """

    gpu_blocks: int
    cpu_tokens: int = 0
    remote_tokens: int = 0
    deferred: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    """The blocks that a sequence has in the cache.

    Attributes:
        sequence: owner of the blocks.
        hit: cached part at admission.
        blocks: physical blocks, in the sequence's order.
        n_cached: leading blocks that have their hash.
        n_computed: tokens whose KV state exists, or will exist when the load is done.
        n_reserved: free blocks reserved for the rest of the prompt.
        next_chunk: first prompt chunk that was not yet offered to the CPU tier.
        loading: chunks being loaded for this sequence.
        used_chunks: loaded or offered chunks, whose recency `release` renews.
    """

    sequence: BlockSequence
    hit: Hit
    blocks: list[int]
    n_cached: int
    n_computed: int
    n_reserved: int
    next_chunk: int = 0
    loading: tuple[Chunk, ...] = ()
    used_chunks: set[int] = field(default_factory=set[int])


@dataclass(frozen=True, slots=True)
class Transfer:
    """Chunks being copied to the CPU tier, from GPU or storage, and the events of the evictions for them."""

    chunks: tuple[Chunk, ...] = ()
    events: tuple[Event, ...] = ()


NO_TRANSFER = Transfer()


class BlockCache:
    """The tiers of one engine.

    Args:
        block_size: tokens per block.
        gpu_blocks: GPU pool size; as in vLLM one block is reserved.
        cpu_blocks: CPU tier size; 0 for no CPU tier.
        chunk_blocks: blocks per CPU chunk.
        self_describing: whether CPU events contain tokens and all hashes, or only the last hash of each chunk.
        storage: storage tier, which other engines may share; None for no storage.
    """

    def __init__(
        self,
        *,
        block_size: int,
        gpu_blocks: int,
        cpu_blocks: int = 0,
        chunk_blocks: int = 1,
        self_describing: bool = True,
        storage: StorageTier | None = None,
    ) -> None:
        self.block_size = block_size
        self.chunk_blocks = chunk_blocks
        self.gpu = GpuPool(gpu_blocks)
        self.cpu = CpuTier(cpu_blocks // chunk_blocks)
        self._self_describing = self_describing
        self._events = CacheEvents(block_size=block_size, self_describing=self_describing)
        self._storage = storage
        self.n_reserved = 0
        """Free blocks reserved for admitted prompts."""

    @property
    def has_storage(self) -> bool:
        """Whether there is a storage tier."""
        return self._storage is not None

    @property
    def usage(self) -> float:
        """Fraction of the GPU blocks in use, 0 to 1; cached blocks without references count as free."""
        return self.gpu.n_used / self.gpu.capacity

    @property
    def gpu_tokens(self) -> int:
        """Tokens for which the GPU blocks have room."""
        return self.gpu.capacity * self.block_size

    def lookup(self, sequence: BlockSequence) -> Hit:
        """Find the reusable part of a sequence, without any change.

        GPU: leading blocks, never the last token. CPU: whole chunks, from the chunk at the GPU boundary on, if at least the
        tokens of one chunk are gained.
        """
        gpu_blocks = self._gpu_blocks(sequence)
        chunk_tokens = self.chunk_blocks * self.block_size
        on_gpu = gpu_blocks * self.block_size
        if len(sequence) // chunk_tokens * chunk_tokens - on_gpu < chunk_tokens:
            return Hit(gpu_blocks)
        found = self._held_chunks(sequence, gpu_blocks // self.chunk_blocks)
        gained = (gpu_blocks // self.chunk_blocks + len(found)) * chunk_tokens - on_gpu
        if not found or gained < chunk_tokens:
            return Hit(gpu_blocks)
        return Hit(gpu_blocks, gained, deferred=any(not chunk.ready or chunk.pins for chunk in found))

    def fetch(self, sequence: BlockSequence) -> Transfer:
        """Add chunks that only storage has and that extend the hit to the CPU tier.

        The transfer is empty if there is no such chunk, or no room.
        """
        if self._storage is None:
            return NO_TRANSFER
        first = self._gpu_blocks(sequence) // self.chunk_blocks
        missing: list[Chunk] = []
        for index in range(first, len(sequence.hashes) // self.chunk_blocks):
            key = self._chunk_key(sequence, index)
            if self.cpu.get(key) is not None:
                if missing:
                    break  # vLLM fetches one run at a time
            elif key in self._storage:
                missing.append(self._storage.read(key))
            else:
                break
        return self._enter(missing, keep={chunk.key for chunk in missing}) or NO_TRANSFER

    def admit(self, sequence: BlockSequence, *, remote: bool = False) -> tuple[Lease, list[Event]] | Wait:
        """Return a lease on the cached part, with blocks to load into if the hit has a CPU part.

        The whole prompt must fit beside the reservations of others, so that no prefill can starve.

        Args:
            sequence: the request's.
            remote: whether another server sends all that is not on the GPU; the CPU tier is then not read.
        """
        hit = self._remote_hit(sequence) if remote else self.lookup(sequence)
        if hit.deferred:
            return Wait.DEFERRED
        shared = [self._found(key) for key in sequence.hashes[: hit.gpu_blocks]]
        n_total = -(-len(sequence) // self.block_size)
        n_reusable = sum(self.gpu.is_free(block) for block in shared)
        if n_total - len(shared) > self.gpu.n_free - n_reusable - self.n_reserved:
            return Wait.NO_ROOM
        for block in shared:
            self.gpu.share(block)
        loaded, evicted = self.gpu.take(-(-(hit.cpu_tokens + hit.remote_tokens) // self.block_size))
        n_computed = hit.gpu_blocks * self.block_size + hit.cpu_tokens + hit.remote_tokens
        lease = Lease(
            sequence=sequence,
            hit=hit,
            blocks=shared + loaded,
            n_cached=len(shared),
            n_computed=n_computed,
            n_reserved=n_total - len(shared) - len(loaded),
        )
        self.n_reserved += lease.n_reserved
        if hit.cpu_tokens:
            self._start_load(lease)
        return lease, self._events.removed(evicted)

    def complete_load(self, lease: Lease) -> list[Event]:
        """Complete a load: its blocks are cached on the GPU, and the CPU copies stay.

        If the whole prompt was cached, the last token is computed again for its logits.
        """
        self._end_load(lease)
        events = self._cache_full_blocks(lease)
        lease.n_computed = min(lease.n_computed, len(lease.sequence) - 1)
        return events

    def extend(self, lease: Lease, n_tokens: int) -> list[Event] | None:
        """Allocate blocks for the next `n_tokens` of the sequence, and cache the blocks that become full.

        Returns:
            the events; None if there are not enough blocks, and then nothing has changed.
        """
        n_computed, events = lease.n_computed + n_tokens, list[Event]()
        n_blocks = -(-n_computed // self.block_size) - len(lease.blocks)
        if n_blocks > 0:
            if n_blocks > self.gpu.n_free - (self.n_reserved - lease.n_reserved):
                return None
            self._give_up_reserve(lease, min(lease.n_reserved, n_blocks))
            taken, evicted = self.gpu.take(n_blocks)
            lease.blocks += taken
            events = self._events.removed(evicted)
        lease.n_computed = n_computed
        if n_computed // self.block_size > lease.n_cached:
            events += self._cache_full_blocks(lease)
        return events

    def offload(self, lease: Lease) -> Transfer:
        """Offer the computed prompt chunks to the CPU tier.

        If the tier has no room, nothing changes, and the next call offers them again.
        """
        sequence, size = lease.sequence, self.chunk_blocks
        n_tokens = min(lease.n_computed, sequence.n_prompt)
        n_chunks = n_tokens // (size * self.block_size) if self.cpu.capacity else 0
        first = lease.next_chunk
        if n_chunks <= first:
            return NO_TRANSFER
        keys, missing = sequence.hashes[(first + 1) * size - 1 : n_chunks * size : size], list[Chunk]()
        for index, key in enumerate(keys, start=first):
            held = self.cpu.get(key)
            if held is None:
                missing.append(self._chunk(sequence, index))
            if held is None or held.ready:
                lease.used_chunks.add(index)
        transfer = self._enter(missing, keep=set(keys))
        if transfer is None:
            return NO_TRANSFER
        lease.next_chunk = n_chunks
        return transfer

    def complete_transfer(self, transfer: Transfer) -> list[Event]:
        """Complete the copies: one event per chunk, in arbitrary order, as on a server."""
        events: list[Event] = []
        for chunk in sorted(transfer.chunks, key=lambda chunk: chunk.key):
            if self.cpu.get(chunk.key) is chunk:
                chunk.ready = True
                events.append(self._events.chunk_stored(chunk, CPU))
        return events

    def write(self, transfer: Transfer) -> list[Event]:
        """Copy offloaded chunks to storage, and return the events of the new ones."""
        storage = self._storage
        if storage is None:
            return []
        return [
            self._events.chunk_stored(chunk, STORAGE)
            for chunk in sorted(transfer.chunks, key=lambda chunk: chunk.key)
            if chunk.ready and storage.write(chunk)
        ]

    def release(self, lease: Lease) -> None:
        """Release all blocks, the tail first so that it is evicted first, and renew the used chunks."""
        self._end_load(lease)
        self._give_up_reserve(lease, lease.n_reserved)
        self.gpu.give_back(reversed(lease.blocks))
        lease.blocks = []
        hashes, size = lease.sequence.hashes, self.chunk_blocks
        self.cpu.touch(hashes[(index + 1) * size - 1] for index in sorted(lease.used_chunks, reverse=True))

    def reset(self, *, cpu: bool = False) -> list[Event] | None:
        """Clear the GPU prefix cache, and optionally the CPU tier, which causes no event, as in vLLM.

        Returns:
            the events; None if blocks are in use, and then nothing has changed.
        """
        if self.gpu.n_used:
            return None
        self.gpu.forget_hashes()
        if cpu:
            self.cpu.clear()
        return [AllBlocksCleared()]

    def _remote_hit(self, sequence: BlockSequence) -> Hit:
        gpu_blocks = self._gpu_blocks(sequence)
        return Hit(gpu_blocks, remote_tokens=len(sequence) - gpu_blocks * self.block_size)

    def _gpu_blocks(self, sequence: BlockSequence) -> int:
        """Count the leading blocks on the GPU that can be reused."""
        usable, hashes, find = (len(sequence) - 1) // self.block_size, sequence.hashes, self.gpu.find
        n_blocks = 0
        while n_blocks < usable and find(hashes[n_blocks]) is not None:
            n_blocks += 1
        return n_blocks

    def _enter(self, chunks: list[Chunk], *, keep: Collection[EngineHash]) -> Transfer | None:
        """Evict chunks from the CPU tier and add `chunks`; None if there is no room."""
        evicted = self.cpu.add(chunks, keep=keep)
        if evicted is None:
            return None
        return Transfer(tuple(chunks), self._events.chunks_removed(evicted))

    def _found(self, key: EngineHash) -> int:
        block = self.gpu.find(key)
        if block is None:
            raise KeyError(f"hash {key} is not cached")
        return block

    def _chunk_key(self, sequence: BlockSequence, index: int) -> EngineHash:
        return sequence.hashes[(index + 1) * self.chunk_blocks - 1]

    def _chunk(self, sequence: BlockSequence, index: int) -> Chunk:
        first, end = index * self.chunk_blocks, (index + 1) * self.chunk_blocks
        tokens = sequence.block_tokens(first, end) if self._self_describing else ()
        return Chunk(tuple(sequence.hashes[first:end]), sequence.parent(first), tokens, sequence.lora)

    def _held_chunks(self, sequence: BlockSequence, first: int) -> list[Chunk]:
        held: list[Chunk] = []
        for index in range(first, len(sequence.hashes) // self.chunk_blocks):
            chunk = self.cpu.get(self._chunk_key(sequence, index))
            if chunk is None:
                break
            held.append(chunk)
        return held

    def _start_load(self, lease: Lease) -> None:
        first = lease.hit.gpu_blocks // self.chunk_blocks
        lease.next_chunk = lease.n_computed // (self.chunk_blocks * self.block_size)
        lease.used_chunks.update(range(first, lease.next_chunk))
        lease.loading = tuple(self._held_chunks(lease.sequence, first))
        for chunk in lease.loading:
            chunk.pins += 1

    def _end_load(self, lease: Lease) -> None:
        for chunk in lease.loading:
            chunk.pins -= 1
        lease.loading = ()

    def _give_up_reserve(self, lease: Lease, n_blocks: int) -> None:
        lease.n_reserved -= n_blocks
        self.n_reserved -= n_blocks

    def _cache_full_blocks(self, lease: Lease) -> list[Event]:
        sequence = lease.sequence
        first, end = lease.n_cached, min(lease.n_computed, len(sequence)) // self.block_size
        if end <= first:
            return []
        for block, key in zip(lease.blocks[first:end], sequence.hashes[first:end], strict=True):
            self.gpu.cache(block, key)
        lease.n_cached = end
        return [self._events.stored(sequence, first, end)]
