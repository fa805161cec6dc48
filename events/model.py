"""Domain events: changes of one engine's KV cache, independent of the wire format."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NewType, Protocol

Seq = NewType("Seq", int)
"""Sequence number of a batch within one publisher's life, 0 .. 2**64 - 2."""

EngineHash = NewType("EngineHash", int)
"""An engine's own hash of a block, folded to 64 unsigned bits; opaque and meaningful only within its publisher."""

MediumName = NewType("MediumName", str)
"""An engine's name for a tier, in upper case; events without one mean `GPU`. See `qualified_medium`."""

STORE_MEDIA_PREFIX = "MOONCAKE_"
"""Put before the medium of events about a store's objects: the `cpu` of a pool is not the `CPU` of one engine."""

DEFAULT_MEDIUM = MediumName("GPU")

REMOTE = "REMOTE"
"""Locality of blocks that are no server's own (vLLM 0.26)."""


def qualified_medium(medium: MediumName, *, is_remote: bool, owner: str) -> MediumName:
    """Return a medium with what an event says of it: `STORAGE/REMOTE`, `STORAGE/KVCR`, `STORAGE/REMOTE/KVCR`."""
    return MediumName(
        "/".join([medium, *([REMOTE] if is_remote else []), *([owner.upper()] if owner else [])])
    )


def is_remote(medium: MediumName) -> bool:
    """Return whether events say that the blocks of a medium are no server's own."""
    return "/" in medium and medium.split("/", 2)[1] == REMOTE


def broader_media(medium: MediumName) -> list[MediumName]:
    """Return what a qualified medium also is, closest first; empty for a plain one."""
    base, *more = medium.split("/", 2)
    kept = [f"{base}/{each}" for each in reversed(more)] if len(more) == 2 else []
    return [MediumName(each) for each in ([*kept, base] if base and more else [])]


FULL_ATTENTION_KINDS = frozenset({"full_attention", "mla_attention", "sink_full_attention"})
"""Cache kinds whose blocks a prefix needs from block 0 on; other kinds need a window or a state."""


class HashSpace(Enum):
    """The meaning of the hashes of an event."""

    OWN = "own"
    """The publisher's own: opaque, learned from its events with tokens."""
    STANDARD = "standard"
    """Standard sequence hashes, XXH3-64 with seed 0: they are block keys, and anybody can compute them."""
    FLEET = "fleet"
    """Hashes of the engines that fill a common store: known from the events of any of these engines."""


@dataclass(frozen=True, slots=True)
class MultimodalKey:
    """One multimodal item that touches a block.

    Attributes:
        identifier: the engine's hash of the item.
        offset: first token of the item relative to the block, negative if it began earlier.
    """

    identifier: str
    offset: int


ExtraKey = str | MultimodalKey
"""An input of an engine's block hash beside tokens: a plain name (adapter, salt, digest) or a multimodal item."""


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that became resident in one tier of one publisher.

    Attributes:
        hashes: engine hashes in prefix order; may be fewer than the tokens cover for windowed groups.
        parent: hash of the block before `hashes[0]`; None at the start of a prompt or if it was not sent.
        tokens: token ids of the blocks as `array('I')`, empty if the engine sent only hashes.
        block_size: tokens per block; 0 if the engine sent only hashes.
        medium: the engine's name for the tier.
        lora_name: adapter the blocks were computed with, or None.
        extra_keys: per block, the other inputs of the engine's hash (salt, adapter, multimodal ids), None if there are
            none; None as a whole if the engine did not send them.
        group: KV-cache group of the blocks, 0 for engines with one group.
        kind: cache kind of that group, None if it was not sent.
        window: sliding window of that group in tokens, or None.
        salt: cache salt of the prompt, if the engine sends it beside the extra keys (SGLang); else None.
        lookahead: tokens after the last block that are part of its hash (vLLM 0.33 with a drafter), as many as after every
            block; None if the engine's hashes cover blocks alone.
        space: meaning of `hashes`.
        tenant: tenant that the event names, None if it names none.
        session: session of the request that stored the blocks, None if the event names none.
        additional_salt: salt that an envelope names, of its publisher or of the prompt; None if it names none.
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
    salt: str | None = None
    lookahead: array[int] | None = None

    @property
    def n_lookahead(self) -> int:
        """Tokens after each block that are part of its hash."""
        return len(self.lookahead) if self.lookahead is not None else 0

    space: HashSpace = HashSpace.OWN
    tenant: str | None = None
    session: str | None = None
    additional_salt: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks of which one physical copy each left one tier of one publisher; `space` and `tenant` as in `BlockStored`."""

    hashes: tuple[EngineHash, ...]
    medium: MediumName = DEFAULT_MEDIUM
    group: int = 0
    space: HashSpace = HashSpace.OWN
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """A reset of the engine's prefix cache, which says nothing about slower tiers unless it names them.

    Attributes:
        medium: the only tier that was emptied, by its medium; None for the fastest one, or for all if `everywhere`.
        everywhere: whether it is about slower tiers too.
        tenant: as in `BlockStored`.
    """

    medium: MediumName | None = None
    everywhere: bool = False
    tenant: str | None = None


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(Protocol):
    """The events of one message, in order; readable ones are counted and iterated."""

    @property
    def timestamp(self) -> float:
        """Wall-clock seconds at which the engine published, by its own clock; 0 if it sent no time."""
        ...

    @property
    def rank(self) -> int | None:
        """Data-parallel rank that the engine named, or None."""
        ...

    @property
    def size_bytes(self) -> int:
        """Payload size in bytes."""
        ...

    @property
    def rejected(self) -> tuple[str, ...]:
        """Reasons of the unreadable events, one word each."""
        ...

    @property
    def removed_media(self) -> frozenset[MediumName]:
        """Media from which the events remove blocks."""
        ...

    @property
    def n_unknown_removals(self) -> int:
        """Unknown blocks that were removed by events that are applied already."""
        ...

    @property
    def adapters(self) -> frozenset[str]:
        """LoRA adapters whose blocks the events store, as `BlockStored.lora_name`."""
        ...

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Event]: ...
