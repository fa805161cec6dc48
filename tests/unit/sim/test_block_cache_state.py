"""Invariants of the block cache: blocks are conserved, hits were computed before, and events give the exact content."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvatlas.events.model import EngineHash
from kvatlas.sim.block_cache import BlockCache, Lease, Transfer, Wait
from kvatlas.sim.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvatlas.sim.sequence import Lora, TokenSequence

BLOCK = 2
GPU_BLOCKS = 9
MAX_TOKENS = 14

prompts = st.lists(st.integers(0, 1), min_size=1, max_size=MAX_TOKENS - 4)
adapters = st.sampled_from([None, None, Lora("a", 1)])
salts = st.sampled_from([None, None, "s"])
which = st.integers(0, 100)


@dataclass
class Replica:
    """A copy of a cache, rebuilt from its events."""

    gpu: Counter[EngineHash] = field(default_factory=Counter[EngineHash])
    cpu: set[EngineHash] = field(default_factory=set[EngineHash])

    def apply(self, event: Event) -> None:
        match event:
            case BlockStored(block_hashes=hashes, medium="GPU"):
                self.gpu.update(hashes)
            case BlockStored(block_hashes=hashes):
                assert not self.cpu & set(hashes)
                self.cpu.update(hashes)
            case BlockRemoved(block_hashes=hashes, medium="GPU"):
                assert all(self.gpu[key] for key in hashes)
                self.gpu.subtract(hashes)
            case BlockRemoved(block_hashes=hashes):
                assert self.cpu >= set(hashes)
                self.cpu.difference_update(hashes)
            case AllBlocksCleared():
                self.gpu.clear()


class CacheMachine(RuleBasedStateMachine):
    """A server that serves a few concurrent sequences in any order."""

    cpu_blocks = 8
    chunk_blocks = 1

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(
            block_size=BLOCK,
            gpu_blocks=GPU_BLOCKS,
            cpu_blocks=self.cpu_blocks,
            chunk_blocks=self.chunk_blocks,
        )
        self.replica = Replica()
        self.leases: list[Lease] = []
        self.offloads: list[Transfer] = []
        self.computed: set[EngineHash] = set()

    @rule(tokens=prompts, lora=adapters, salt=salts)
    def admit(self, tokens: list[int], lora: Lora | None, salt: str | None) -> None:
        sequence = TokenSequence(array("I", tokens), block_size=BLOCK, lora=lora, salt=salt)
        hit = self.cache.lookup(sequence)
        admitted = self.cache.admit(sequence)
        if isinstance(admitted, Wait):
            return
        lease, events = admitted
        assert lease.hit == hit
        self._check_hit(lease)
        self._apply(events)
        self.leases.append(lease)

    @precondition(lambda self: self._loading())
    @rule(number=which)
    def complete_load(self, number: int) -> None:
        loading = self._loading()
        self._apply(self.cache.complete_load(loading[number % len(loading)]))

    @precondition(lambda self: self._computing())
    @rule(number=which, n_tokens=st.integers(1, MAX_TOKENS))
    def prefill(self, number: int, n_tokens: int) -> None:
        computing = self._computing()
        lease = computing[number % len(computing)]
        events = self.cache.extend(lease, min(n_tokens, len(lease.sequence) - lease.n_computed))
        if lease.n_computed < lease.sequence.n_prompt:
            assert events is not None, "the prompt was promised room at admission"
        self._record(lease, events)

    @precondition(lambda self: self._computed())
    @rule(number=which, token=st.integers(0, 1))
    def generate(self, number: int, token: int) -> None:
        computed = self._computed()
        lease = computed[number % len(computed)]
        if len(lease.sequence) < MAX_TOKENS:
            lease.sequence.extend([token])

    @precondition(lambda self: self._ready())
    @rule(number=which)
    def offload(self, number: int) -> None:
        ready = self._ready()
        offload = self.cache.offload(ready[number % len(ready)])
        self._apply(offload.events)
        self.offloads.append(offload)

    @precondition(lambda self: self.offloads)
    @rule()
    def complete_transfer(self) -> None:
        self._apply(self.cache.complete_transfer(self.offloads.pop(0)))

    @precondition(lambda self: self.leases)
    @rule(number=which)
    def release(self, number: int) -> None:
        self.cache.release(self.leases.pop(number % len(self.leases)))

    @rule(cpu=st.booleans())
    def reset(self, cpu: bool) -> None:
        events = self.cache.reset(cpu=cpu)
        assert (events is None) == any(lease.blocks for lease in self.leases)
        self._apply(events or [])
        if events is not None and cpu:
            self.replica.cpu.clear()  # there is no event for this

    @invariant()
    def events_tell_the_content(self) -> None:
        assert +self.replica.gpu == self.cache.gpu.copies()
        assert self.replica.cpu == {
            key for chunk in self.cache.cpu.chunks() if chunk.ready for key in chunk.hashes
        }

    @invariant()
    def blocks_are_conserved(self) -> None:
        gpu = self.cache.gpu
        assert gpu.n_free + gpu.n_used == gpu.capacity
        assert gpu.references == sum(len(lease.blocks) for lease in self.leases)
        assert gpu.n_used == len({block for lease in self.leases for block in lease.blocks})
        assert all(not gpu.is_free(block) for lease in self.leases for block in lease.blocks)
        assert sum(lease.n_reserved for lease in self.leases) <= gpu.n_free

    @invariant()
    def every_cached_hash_is_found_and_no_other(self) -> None:
        gpu = self.cache.gpu
        assert all(gpu.find(key) is not None for key in gpu.copies())
        assert all(gpu.find(key) is None for key in self.computed - gpu.copies().keys())

    @invariant()
    def cpu_tier_keeps_its_size_and_only_loads_pin_it(self) -> None:
        chunks = self.cache.cpu.chunks()
        assert len(chunks) <= self.cpu_blocks // self.chunk_blocks
        loading = sum(len(lease.loading) for lease in self.leases)
        assert sum(chunk.pins for chunk in chunks) <= loading

    def _check_hit(self, lease: Lease) -> None:
        """Check that the hit does not exceed that of an infinite cache of all computed tokens."""
        sequence, hit = lease.sequence, lease.hit
        infinite = next(
            (i for i, key in enumerate(sequence.hashes) if key not in self.computed), len(sequence.hashes)
        )
        assert hit.gpu_blocks <= min(infinite, (len(sequence) - 1) // BLOCK)
        assert hit.gpu_blocks * BLOCK + hit.cpu_tokens <= infinite * BLOCK

    def _record(self, lease: Lease, events: list[Event] | None) -> None:
        if events is not None:
            self.computed.update(lease.sequence.hashes[: lease.n_computed // BLOCK])
            self._apply(events)

    def _apply(self, events: list[Event] | tuple[Event, ...]) -> None:
        for event in events:
            self.replica.apply(event)

    def _loading(self) -> list[Lease]:
        return [lease for lease in self.leases if lease.loading]

    def _ready(self) -> list[Lease]:
        return [lease for lease in self.leases if not lease.loading]

    def _computing(self) -> list[Lease]:
        return [lease for lease in self._ready() if lease.n_computed < len(lease.sequence)]

    def _computed(self) -> list[Lease]:
        return [lease for lease in self._ready() if lease.n_computed == len(lease.sequence)]


class WithoutCpuTier(CacheMachine):
    cpu_blocks = 0


class ChunksOfTwo(CacheMachine):
    chunk_blocks = 2


class ChunksOfThree(CacheMachine):
    cpu_blocks = 7
    chunk_blocks = 3


@pytest.mark.parametrize("machine", [CacheMachine, WithoutCpuTier, ChunksOfTwo, ChunksOfThree])
def test_cache_keeps_its_promises_whatever_happens(machine: type[CacheMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=30))
