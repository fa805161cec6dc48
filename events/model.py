"""Domain events: what one engine says about its KV cache, whatever wire format it used."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NewType, Protocol

Seq = NewType("Seq", int)
"""Sequence number of a batch within one publisher's life, 0 .. 2**64 - 2."""

EngineHash = NewType("EngineHash", int)
"""An engine's own hash of a block, folded to 64 unsigned bits. Opaque: meaningful only within its publisher."""

MediumName = NewType("MediumName", str)
"""An engine's word for a tier, upper-cased; events without one mean `GPU`."""

DEFAULT_MEDIUM = MediumName("GPU")

FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Cache kinds whose blocks a prefix needs from block 0 on; the others need a window or a state."""


@dataclass(frozen=True, slots=True)
class MultimodalKey:
    """One multimodal item that touches a block.

    Attributes:
        identifier: the engine's hash of the item.
        offset: first token of the item relative to the block, negative when it began earlier.
    """

    identifier: str
    offset: int


ExtraKey = str | MultimodalKey
"""What enters an engine's block hash beside tokens: a plain name (adapter, salt, digest) or a multimodal item."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that became resident in one tier of one publisher.

    Attributes:
        hashes: engine hashes in prefix order; may be fewer than the tokens cover for windowed groups.
        parent: hash of the block before `hashes[0]`; None at the start of a prompt or when not told.
        tokens: token ids of the blocks as `array('I')`, or empty when the engine told only hashes.
        block_size: tokens a block; 0 when the engine told only hashes.
        medium: the engine's word for the tier.
        lora_name: adapter the blocks were computed with, or None.
        extra_keys: per block, what else entered the engine's hash (salt, adapter, multimodal ids), None where
            nothing did; None as a whole when the engine did not tell.
        group: KV-cache group the blocks belong to, 0 for engines with one group.
        kind: cache kind of that group, or None when not told.
        window: sliding window of that group in tokens, or None.
    """

    hashes: tuple[EngineHash, ...]
    parent: EngineHash | None
    tokens: array[int]
    block_size: int
    medium: MediumName = DEFAULT_MEDIUM
    lora_name: str | None = None
    extra_keys: tuple[tuple[ExtraKey, ...] | None, ...] | None = None
    group: int = 0
    kind: str | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One physical copy of each of these blocks left one tier of one publisher."""

    hashes: tuple[EngineHash, ...]
    medium: MediumName = DEFAULT_MEDIUM
    group: int = 0


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The engine reset its prefix cache. Says nothing of slower tiers."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(Protocol):
    """The events of one message, in order: those that can be read are counted and iterated."""

    @property
    def timestamp(self) -> float:
        """Wall-clock seconds at which the engine published, by its own clock; 0 when it told no time."""
        ...

    @property
    def rank(self) -> int | None:
        """Data-parallel rank the engine named, or None."""
        ...

    @property
    def size_bytes(self) -> int:
        """Bytes of the payload; 0 for one that could not be read."""
        ...

    @property
    def rejected(self) -> tuple[str, ...]:
        """Reasons of the events that could not be read, one word each."""
        ...

    @property
    def removed_media(self) -> frozenset[MediumName]:
        """Media from which events of the message remove blocks."""
        ...

    @property
    def adapters(self) -> frozenset[str]:
        """LoRA adapters whose blocks events of the message store, as `BlockStored.lora_name`."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Event]: ...


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Implements `Batch` with every event as a value, `events`."""

    timestamp: float
    events: tuple[Event, ...]
    rank: int | None = None
    rejected: tuple[str, ...] = ()
    size_bytes: int = field(default=0, compare=False)

    @property
    def removed_media(self) -> frozenset[MediumName]:
        """See `Batch.removed_media`."""
        return frozenset(event.medium for event in self.events if isinstance(event, BlockRemoved))

    @property
    def adapters(self) -> frozenset[str]:
        """See `Batch.adapters`."""
        names = (event.lora_name for event in self.events if isinstance(event, BlockStored))
        return frozenset(name for name in names if name)

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
